"""Ranks against a plain loop, recalls against counting."""

import numpy as np
import pytest

import matching.metrics as metrics
from matching.metrics import (
    Recall,
    evaluate_directions,
    evaluate_folds,
    evaluate_scores,
    shortlist,
    true_ranks,
)


def plain_rank(scores: list[float], true: set[int]) -> int:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return min(order.index(i) for i in true)


def plain_figures(ranks: list[int]) -> list[float]:
    ordered = sorted(ranks)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    recalls = [100 * sum(rank < k for rank in ranks) / len(ranks) for k in (1, 5, 10)]
    return [*recalls, median // 1 + 1, sum(ranks) / len(ranks) + 1]


def plain_directions(by_photo, by_caption, true) -> tuple[list[float], list[float]]:
    def ranks(scores: np.ndarray, true: np.ndarray) -> list[int]:
        rows = zip(scores, true, strict=True)
        return [plain_rank(s.tolist(), set(np.flatnonzero(t))) for s, t in rows if t.any()]

    return plain_figures(ranks(by_photo, true)), plain_figures(ranks(by_caption.T, true.T))


def figures(recall: Recall) -> list[float]:
    return [recall.r1, recall.r5, recall.r10, recall.medr, recall.meanr]


@pytest.fixture(params=[1 << 22, 70])
def chunk(request, monkeypatch):
    monkeypatch.setattr(metrics, "_CHUNK", request.param)


def test_ranks_with_many_ties(chunk):
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 6, (40, 30)).astype(np.float32)
    scores[rng.random((40, 30)) < 0.2] = -np.inf  # not scored
    true = rng.random((40, 30)) < 0.1
    true[np.arange(40), rng.integers(0, 30, 40)] = True
    expected = [
        plain_rank(row.tolist(), set(np.flatnonzero(t)))
        for row, t in zip(scores, true, strict=True)
    ]
    assert true_ranks(scores, true).tolist() == expected


def test_recall_median_and_mean():
    recall = Recall.of(np.array([0, 0, 3, 7, 20]))
    assert recall == Recall(40.0, 60.0, 80.0, 4, 7.0)
    assert Recall.of(np.array([0, 1, 4, 8])).medr == 3  # floor(2.5) + 1
    assert set(recall.to_json()) == {"r1", "r5", "r10", "medr", "meanr"}


def test_both_directions_of_a_small_case():
    # Two photos with two captions each; photo 1's best caption is wrong.
    scores = np.array([[0.9, 0.8, 0.1, 0.2], [0.95, 0.3, 0.5, 0.4]], np.float32)
    result = evaluate_scores(scores, np.array([0, 0, 1, 1]))
    assert (result.i2t.r1, result.t2i.r1) == (50.0, 75.0)
    assert (result.i2t.meanr, result.t2i.meanr) == (1.5, 1.25)
    assert result.rsum == pytest.approx(50 + 100 + 100 + 75 + 100 + 100)


def test_any_number_of_captions_a_photo_in_any_order(chunk):
    rng = np.random.default_rng(1)
    owners = np.concatenate([np.arange(17), rng.integers(0, 17, 24)])
    rng.shuffle(owners)
    by_photo, by_caption = rng.integers(0, 9, (2, 17, 41)).astype(np.float32)
    true = np.array([[owner == photo for owner in owners] for photo in range(17)])
    expected = plain_directions(by_photo, by_caption, true)
    for given in (owners, true):
        result = evaluate_directions(by_photo, by_caption, given)
        np.testing.assert_allclose(figures(result.i2t), expected[0], atol=0.0051)
        np.testing.assert_allclose(figures(result.t2i), expected[1], atol=0.0051)
        assert "left_out" not in result.to_json()["i2t"]


def test_queries_without_a_positive_are_left_out_and_counted(chunk):
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(23, 31)).astype(np.float32)
    true = rng.random((23, 31)) < 0.04
    lonely = int((~true.any(1)).sum()), int((~true.any(0)).sum())
    assert min(lonely) > 0
    result = evaluate_scores(scores, true)
    expected = plain_directions(scores, scores, true)
    np.testing.assert_allclose(figures(result.i2t), expected[0], atol=0.0051)
    np.testing.assert_allclose(figures(result.t2i), expected[1], atol=0.0051)
    assert (result.i2t.left_out, result.t2i.left_out) == lonely
    assert result.to_json()["t2i"]["left_out"] == lonely[1]
    with pytest.raises(ValueError, match="no query has a true item"):
        evaluate_scores(scores, np.zeros_like(true))


def test_folds_are_blocks_of_photos_with_their_captions():
    rng = np.random.default_rng(3)
    owners = np.concatenate([np.arange(60), rng.integers(0, 60, 83)])
    rng.shuffle(owners)
    by_photo, by_caption = rng.integers(0, 40, (2, 60, 143)).astype(np.float32)
    i2t, t2i = [], []
    for first in range(0, 60, 12):
        photos = list(range(first, first + 12))
        captions = [c for c, owner in enumerate(owners) if owner in photos]
        true = np.array([[owners[c] == p for c in captions] for p in photos])
        parts = (m[photos][:, captions] for m in (by_photo, by_caption))
        ways = plain_directions(*parts, true)
        i2t.append(ways[0])
        t2i.append(ways[1])
    result = evaluate_folds(by_photo, by_caption, owners, folds=5)
    np.testing.assert_allclose(figures(result.i2t), np.mean(i2t, 0), atol=0.0051)
    np.testing.assert_allclose(figures(result.t2i), np.mean(t2i, 0), atol=0.0051)
    whole = evaluate_directions(by_photo, by_caption, owners)
    assert evaluate_folds(by_photo, by_caption, owners, folds=1) == whole
    assert result.rsum > whole.rsum + 10  # a smaller gallery is easier


def test_input_that_does_not_fit_is_refused():
    scores = np.zeros((4, 8), np.float32)
    owners = np.repeat(np.arange(4), 2)
    with pytest.raises(ValueError, match="4 photos cannot be cut into 3 equal folds"):
        evaluate_folds(scores, scores, owners, folds=3)
    with pytest.raises(ValueError, match="transpose"):
        evaluate_directions(scores, scores.T, owners)
    with pytest.raises(ValueError, match="each of 8 captions"):
        evaluate_scores(scores, owners[:7])
    with pytest.raises(ValueError, match=r"0\.\.3, got 0\.\.4"):
        evaluate_scores(scores, np.array([0, 1, 2, 3, 4, 0, 0, 0]))
    with pytest.raises(ValueError, match="bool"):
        evaluate_scores(scores, np.zeros((4, 8), int))
    scores[2, 3] = np.nan  # must not become rank 0
    with pytest.raises(ValueError, match="NaN"):
        evaluate_scores(scores, owners)


def test_shortlist_gives_ties_to_the_lower_index(chunk):
    assert shortlist(np.array([[1.0, 3.0, 3.0, 2.0]]), 3).tolist() == [[1, 2, 3]]
    scores = np.random.default_rng(4).integers(0, 5, (30, 20))
    for size in (1, 7, 20, 50):
        expected = [
            sorted(range(20), key=lambda i, row=row: (-row[i], i))[:size] for row in scores.tolist()
        ]
        assert shortlist(scores, size).tolist() == expected
