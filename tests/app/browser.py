"""A served page and headless Chromium, for the tests of the page."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.app.conftest import ROOT

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
SIZES = [(1280, 900), (390, 844)]
SIZE_NAMES = ["laptop", "phone"]


@contextmanager
def served(*flags: object) -> Iterator[str]:
    """The address of python app.py with some flags."""
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium: .ci/run installs it, so this must not happen")
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "app.py", "--port", str(port), *map(str, flags)]
    server = subprocess.Popen(command, cwd=ROOT)
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


@contextmanager
def chromium() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@contextmanager
def opened_page(browser, address: str, size: tuple[int, int]) -> Iterator:
    """A page that must raise no error, ask no other host and fit its width."""
    width, height = size
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


def thinnest(page) -> int:
    """The smallest alpha of the map over the photo: 255 where it covers all of it."""
    return page.locator("#why canvas").evaluate("""map => {
      const { data } = map.getContext("2d").getImageData(0, 0, map.width, map.height);
      return data.filter((_, i) => i % 4 === 3).reduce((a, b) => Math.min(a, b));
    }""")
