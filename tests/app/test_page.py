"""The page in headless Chromium, as a person uses it."""

import re

import pytest

from tests.app.browser import (
    SIZE_NAMES,
    SIZES,
    canvas,
    chromium,
    opened_page,
    search,
    served,
    thinnest,
    upload,
)
from tests.app.conftest import ENGINE, GALLERY

pytestmark = pytest.mark.browser
PHOTO = GALLERY / "part-00000" / "photos"


@pytest.fixture(scope="module")
def address():
    with served("--engine", ENGINE) as url:
        yield url


@pytest.fixture(scope="module")
def browser(address):
    with chromium() as opened:
        yield opened


@pytest.fixture(params=SIZES, ids=SIZE_NAMES)
def page(browser, address, request):
    with opened_page(browser, address, request.param) as opened:
        yield opened


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
    gates = canvas(page)  # what is shown first
    assert thinnest(page) < 128  # open regions stay clear
    words.nth(1).hover()
    dog = canvas(page)
    assert thinnest(page) == 255
    words.nth(5).hover()
    snow = canvas(page)
    assert len({gates, dog, snow}) == 3
    assert "attention of “snow”" in page.locator("#why .lens-label").inner_text()
    page.get_by_role("button", name="Whole caption").click()
    assert canvas(page) not in (gates, dog, snow)
    page.get_by_role("button", name="Region gates").click()
    assert canvas(page) == gates
    assert page.locator("#why .lens-ends").inner_text().split()[-1] == "1.00"
    heading = page.locator("#why .lens-heading").inner_text()
    page.locator("#photos button img").nth(3).click()
    page.wait_for_function(
        "old => document.querySelector('#why .lens-heading').innerText !== old",
        arg=heading,
    )
    assert page.locator("#why .lens-heading").inner_text().startswith("Result 4")
    assert "licence" in page.content()
    page.get_by_role("button", name="Options").click()
    page.locator("#count").wait_for()
    assert page.locator("#engine").count() == 0  # there is nothing to choose from


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
