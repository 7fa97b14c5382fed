"""Ranks against a plain loop, recalls against counting."""

import numpy as np
import pytest

from matching.metrics import (
    Recall,
    evaluate_scores,
    shortlist,
    true_ranks,
    two_stage_scores,
)


def plain_rank(scores: list[float], true: set[int]) -> int:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return min(order.index(i) for i in true)


def test_ranks_with_many_ties():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 6, (40, 30)).astype(np.float32)
    true = rng.random((40, 30)) < 0.1
    true[np.arange(40), rng.integers(0, 30, 40)] = True
    expected = [
        plain_rank(row.tolist(), set(np.flatnonzero(t)))
        for row, t in zip(scores, true, strict=True)
    ]
    assert true_ranks(scores, true).tolist() == expected


def test_recall_and_median():
    recall = Recall.of(np.array([0, 0, 3, 7, 20]))
    assert recall == Recall(40.0, 60.0, 80.0, 4)


def test_both_directions_of_a_small_case():
    # Two photos with two captions each; photo 1's best caption is wrong.
    scores = np.array([[0.9, 0.8, 0.1, 0.2], [0.95, 0.3, 0.5, 0.4]], np.float32)
    result = evaluate_scores(scores, np.array([0, 0, 1, 1]))
    assert (result.i2t.r1, result.t2i.r1) == (50.0, 75.0)
    assert result.rsum == pytest.approx(50 + 100 + 100 + 75 + 100 + 100)


def test_shortlist_gives_ties_to_the_lower_index():
    assert shortlist(np.array([[1.0, 3.0, 3.0, 2.0]]), 3).tolist() == [[1, 2, 3]]


def test_two_stages_keep_the_rest_below_in_stage_1_order():
    stage1 = np.array([[0.9, 0.8, 0.7, 0.6, 0.5]], np.float32)
    listed = shortlist(stage1, 3)
    combined = two_stage_scores(stage1, listed, np.array([[-5.0, 2.0, -9.0]], np.float32))
    assert np.argsort(-combined[0], kind="stable").tolist() == [1, 0, 2, 3, 4]
