"""The probability that is shown is a fit, not a decoration."""

import numpy as np

from matching.ranking import Ranking, fit_probability, significant, weight_grid


def test_logistic_fit_finds_the_true_curve():
    rng = np.random.default_rng(1)
    scores = rng.normal(5, 3, 200_000)
    matches = rng.random(len(scores)) < 1 / (1 + np.exp(-(0.8 * scores - 5)))
    slope, intercept = fit_probability(scores, matches.astype(float))
    assert abs(slope - 0.8) < 0.02 and abs(intercept + 5) < 0.1
    shown = Ranking(0.0, slope, intercept).probabilities(scores)
    for low in (0.1, 0.4, 0.7):
        bin_ = (shown > low) & (shown < low + 0.1)
        assert abs(matches[bin_].mean() - shown[bin_].mean()) < 0.02


def test_final_score_adds_the_weighted_cosine():
    ranking = Ranking(stage1_weight=10.0, slope=1.0, intercept=0.0)
    scores = ranking.scores(np.array([1.0, 2.0], np.float32), np.array([0.5, 0.1], np.float32))
    np.testing.assert_allclose(scores, [6.0, 3.0])
    assert ranking.probabilities(np.array([1e9, -1e9])).tolist()[0] <= 1.0


def test_weights_suit_scores_of_any_scale():
    rng = np.random.default_rng(3)
    logits = [rng.normal(0, 30, (40, 10)), rng.normal(0, 30, (20, 10))]
    similarities = [rng.normal(0, 0.1, (40, 10)), rng.normal(0, 0.1, (20, 10))]
    # Queries may differ in level; that changes no order within a shortlist.
    similarities = [s + rng.normal(0, 5, (len(s), 1)) for s in similarities]
    inside = [
        np.mean([np.std(row) for part in parts for row in part]) for parts in (logits, similarities)
    ]
    ratio = inside[0] / inside[1]
    weights = weight_grid(logits, similarities)
    assert weights[0] == 0 and weights == sorted(set(weights))
    np.testing.assert_allclose([weights[1], weights[-1]], [0.05 * ratio, 20 * ratio], rtol=1e-3)
    assert all(float(f"{weight:.4g}") == weight for weight in weights)
    small = weight_grid([part / 1000 for part in logits], similarities)
    np.testing.assert_allclose(small, np.array(weights) / 1000, rtol=1e-3)


def test_weights_when_a_stage_says_nothing():
    flat, spread = np.zeros((4, 5)), np.random.default_rng(4).normal(size=(4, 5))
    assert weight_grid([spread], [flat]) == [0.0]
    weights = weight_grid([flat], [spread])
    assert weights[0] == 0 and weights[-1] > 1


def test_significant_digits():
    assert significant(123456.0, 4) == 123500.0
    assert significant(-0.000123456, 4) == -0.0001235
    assert significant(0.0, 4) == 0.0
