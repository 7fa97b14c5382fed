"""Sizes of shortlists, and two-stage ranks against a plain sort."""

import numpy as np
import pytest

from matching.metrics import shortlist, true_ranks
from matching.shortlist import ShortlistSize, two_stage_ranks, two_stage_scores


def plain_order(stage1: list[float], listed: list[int], scores: list[float]) -> list[int]:
    again = dict(zip(listed, scores, strict=True))
    top = sorted(listed, key=lambda i: (-again[i], i))
    rest = [i for i in range(len(stage1)) if i not in again]
    return top + sorted(rest, key=lambda i: (-stage1[i], i))


@pytest.mark.parametrize(
    ("text", "total", "size"),
    [
        ("100", 1000, 100),
        ("100", 60, 60),
        ("10%", 1000, 100),
        ("10%", 5000, 500),
        ("10%", 7, 1),
        ("10%", 1009, 100),
        ("7%", 100, 7),
        ("0.5%", 1000, 5),
        (" 100 % ", 37, 37),
    ],
)
def test_a_number_or_a_percentage(text, total, size):
    assert ShortlistSize.parse(text).of(total) == size


def test_percentages_against_counting():
    for percent in range(1, 101):
        for total in (1, 9, 100, 999, 5000):
            listed = 0
            while 100 * (listed + 1) <= percent * total:
                listed += 1
            assert ShortlistSize.parse(f"{percent}%").of(total) == max(1, listed)


@pytest.mark.parametrize(
    "text", ["0", "-3", "0%", "120%", "-5%", "ten", "", "%", "12.5", "nan", "inf%", "10%%"]
)
def test_nonsense_is_refused(text):
    with pytest.raises(ValueError, match="size of a shortlist .* for example 100 or 10%"):
        ShortlistSize.parse(text)


def test_a_size_is_written_as_it_was_read():
    assert ShortlistSize.parse("100").to_json() == 100
    assert ShortlistSize.parse("12.5%").to_json() == "12.5%"
    assert ShortlistSize.parse("1234567").to_json() == 1234567


def test_two_stages_keep_the_rest_below_in_stage_1_order():
    stage1 = np.array([[0.9, 0.8, 0.7, 0.6, 0.5]], np.float32)
    listed = shortlist(stage1, 3)
    combined = two_stage_scores(stage1, listed, np.array([[-5.0, 2.0, -9.0]], np.float32))
    assert np.argsort(-combined[0], kind="stable").tolist() == [1, 0, 2, 3, 4]


def test_similarities_that_nearly_agree_stay_apart_below_low_scores():
    near = np.nextafter(np.float32(0.5), np.float32(1))
    stage1 = np.array([[0.9, 0.5, near]], np.float32)
    combined = two_stage_scores(stage1, np.array([[0]]), np.array([[-900.0]], np.float32))
    assert np.argsort(-combined[0], kind="stable").tolist() == [0, 2, 1]


@pytest.mark.parametrize("size", [1, 5, 14])
def test_two_stage_scores_and_ranks_equal_a_plain_sort(size):
    rng = np.random.default_rng(size)
    stage1 = rng.integers(0, 8, (50, 14)).astype(np.float32)
    true = rng.random((50, 14)) < 0.12
    true[0] = False
    listed = shortlist(stage1, size)
    scores = rng.integers(-4, 4, listed.shape).astype(np.float32)
    combined = two_stage_scores(stage1, listed, scores)
    ranks = two_stage_ranks(
        true_ranks(stage1, true), listed, scores, np.take_along_axis(true, listed, 1)
    )
    for query in range(50):
        order = plain_order(stage1[query].tolist(), listed[query].tolist(), scores[query].tolist())
        assert np.argsort(-combined[query], kind="stable").tolist() == order
        places = [place for place, item in enumerate(order) if true[query, item]]
        assert ranks[query] == (min(places) if places else -1)


def test_a_score_that_is_no_number_is_refused():
    true = np.array([[True, False]])
    with pytest.raises(ValueError, match="NaN"):
        two_stage_ranks(np.array([0]), np.array([[0, 1]]), np.array([[np.nan, 1.0]]), true)
