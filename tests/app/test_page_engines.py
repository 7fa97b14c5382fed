"""The page with a choice of engines, some of which have no gates or no attention of words."""

import pytest

from tests.app.browser import (
    SIZE_NAMES,
    SIZES,
    canvas,
    chromium,
    opened_page,
    search,
    served,
    upload,
)
from tests.app.conftest import ENGINE, GALLERY

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(small_gallery, tiny):
    engines = (ENGINE, tiny / "engines" / "mmca", tiny / "engines" / "dive-scan")
    flags = [flag for folder in engines for flag in ("--engine", folder)]
    with served("--gallery", small_gallery, *flags) as url:
        yield url


@pytest.fixture(scope="module")
def browser(address):
    with chromium() as opened:
        yield opened


@pytest.fixture(params=SIZES, ids=SIZE_NAMES)
def page(browser, address, request):
    with opened_page(browser, address, request.param) as opened:
        yield opened


def choose_engine(page, name: str) -> None:
    if not page.locator("#engine").is_visible():
        page.get_by_role("button", name="Options").click()
    page.locator("#engine input").click()
    page.get_by_role("option", name=name).click()


def wait_for(page, selector: str, text: str) -> None:
    page.wait_for_function(
        "([selector, text]) => document.querySelector(selector)?.innerText.includes(text)",
        arg=[selector, text],
    )


def gates_of_words(page) -> list[str]:
    words = page.locator("#why .lens-word")
    return words.evaluate_all("nodes => nodes.map(n => n.style.getPropertyValue('--gate'))")


def test_another_engine_searches_again_and_its_lens_has_no_gates(page):
    search(page, "two dogs on grass")
    wait_for(page, "#status", "VSE-infinity + CAMP (fast)")
    page.locator("#why .lens-word").first.wait_for()
    assert page.get_by_role("button", name="Region gates").count() == 1
    assert max(map(float, gates_of_words(page))) > 0
    choose_engine(page, "MMCA")
    wait_for(page, "#status", "MMCA on ONNX Runtime")
    assert ", MMCA" in page.locator("#status").inner_text()  # the time of the scorer
    wait_for(page, "#why .lens-hint", "MMCA has no gates")
    assert page.get_by_role("button", name="Region gates").count() == 0
    assert gates_of_words(page) == ["0"] * 4
    whole = canvas(page)
    page.locator("#why .lens-word").nth(1).hover()
    assert page.locator("#why .lens-label").inner_text() == "attention of “dogs”"
    assert canvas(page) != whole
    choose_engine(page, "DivE + SCAN (i2t)")
    wait_for(page, "#why .lens-hint", "regions look at words")
    page.locator("#why .lens-word").nth(3).hover()
    assert page.locator("#why .lens-label").inner_text() == "regions that look at “grass”"
    page.locator("#photos button img").nth(2).click()
    wait_for(page, "#why .lens-heading", "Result 3")
    assert "SCAN" in page.locator("#why .lens-numbers").inner_text()


def test_captions_of_a_photo_are_found_by_the_chosen_engine(page):
    search(page, "a dog")
    wait_for(page, "#status", "VSE-infinity + CAMP")
    upload(page, sorted((GALLERY / "part-00000" / "photos").iterdir())[0])
    wait_for(page, "#caption-status", "VSE-infinity + CAMP")
    wait_for(page, "#why .lens-heading", "Caption 1")
    choose_engine(page, "MMCA")
    wait_for(page, "#caption-status", "MMCA on ONNX Runtime")
    wait_for(page, "#why .lens-hint", "MMCA has no gates")
    # The lens stays with the open tab, though the other search was made again, too.
    page.get_by_role("tab", name="Find photos").click()
    wait_for(page, "#status", "MMCA on ONNX Runtime")
    assert page.locator("#why .lens-heading").inner_text().startswith("Caption 1")
