"""The page in headless Chromium, as a person uses it."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.app.conftest import GALLERY, ROOT

pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHOTO = GALLERY / "part-00000" / "photos"


@pytest.fixture(scope="module")
def address():
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium: .ci/run installs it, so this must not happen")
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "app.py", "--port", str(port)], cwd=ROOT)
    url = f"http://127.0.0.1:{port}/"
    for _ in range(120):
        try:
            urllib.request.urlopen(url, timeout=2).read()
            break
        except OSError:
            assert server.poll() is None, "the app ended while it started"
            time.sleep(0.5)
    yield url
    server.terminate()
    server.wait(20)


@pytest.fixture(scope="module")
def browser(address):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=["laptop", "phone"])
def page(browser, address, request):
    width, height = request.param
    opened = browser.new_page(viewport={"width": width, "height": height})
    opened.set_default_timeout(30_000)
    errors, strangers = [], []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on(
        "request",
        lambda r: (
            None if r.url.startswith((address, "data:", "blob:")) else strangers.append(r.url)
        ),
    )
    opened.goto(address)
    yield opened
    assert not errors
    assert not strangers, "the page asked another host for something"
    assert opened.evaluate("document.documentElement.scrollWidth") <= width, "sideways scrolling"
    opened.close()


def search(page, text: str) -> None:
    page.locator("#caption textarea").fill(text)
    page.locator("#search").click()


def canvas(page) -> str:
    return page.locator("#why canvas").evaluate("c => c.toDataURL()")


def upload(page, path: Path) -> None:
    page.get_by_role("tab", name="Find captions").click()
    page.locator("#upload input[type=file]").set_input_files(path)


def test_a_caption_finds_photos_and_words_show_where_they_look(page):
    search(page, "a dog running through the snow")
    page.wait_for_selector("#photos img")
    words = page.locator("#why .lens-word")
    words.first.wait_for()
    assert words.all_inner_texts() == ["a", "dog", "running", "through", "the", "snow"]
    status = page.locator("#status").inner_text()
    assert re.search(
        r"12 photos in \d+ ms \(text encoder \d+ ms, stage 1 \d+ ms, CAMP \d+ ms\)", status
    )
    assert "ONNX Runtime" in status
    whole = canvas(page)
    words.nth(1).hover()
    dog = canvas(page)
    words.nth(5).hover()
    snow = canvas(page)
    assert len({whole, dog, snow}) == 3
    assert "attention of “snow”" in page.locator("#why .lens-label").inner_text()
    page.get_by_role("button", name="Region gates").click()
    assert canvas(page) not in (whole, dog, snow)
    assert page.locator("#why .lens-ends").inner_text().split()[-1] == "1.00"
    heading = page.locator("#why .lens-heading").inner_text()
    page.locator("#photos button img").nth(3).click()
    page.wait_for_function(
        "old => document.querySelector('#why .lens-heading').innerText !== old",
        arg=heading,
    )
    assert page.locator("#why .lens-heading").inner_text().startswith("Result 4")
    assert "licence" in page.content()


def test_a_photo_finds_captions_and_photos(page):
    upload(page, sorted(PHOTO.iterdir())[0])
    captions = page.locator("#captions button")
    captions.first.wait_for()
    assert captions.count() == 10
    assert page.locator("#similar img").count() >= 4
    heading = page.locator("#why .lens-heading").inner_text()
    assert heading.startswith("Caption 1")
    captions.nth(2).click()
    page.wait_for_function(
        "old => document.querySelector('#why .lens-heading').innerText !== old",
        arg=heading,
    )
    assert page.locator("#why .lens-heading").inner_text().startswith("Caption 3")


def test_bad_input_is_explained_and_the_next_search_works(page, tmp_path):
    search(page, "   ")
    page.get_by_text("The caption has no words").first.wait_for()
    search(page, "dog " * 2000)
    page.get_by_text("The caption has 2,000 words").first.wait_for()
    whole = sorted(PHOTO.glob("*.jpg"))[0].read_bytes()
    (tmp_path / "half.jpg").write_bytes(whole[: len(whole) // 2])
    upload(page, tmp_path / "half.jpg")
    page.get_by_text("is damaged and cannot be decoded").first.wait_for()
    page.get_by_role("tab", name="Find photos").click()
    search(page, "<img src=x onerror=alert(1)> a cat")
    page.wait_for_selector("#photos img")
    page.wait_for_function(
        "document.querySelector('#why .lens-caption')?.innerText.includes('onerror')",
    )
    assert page.locator("#why .lens-caption img").count() == 0
