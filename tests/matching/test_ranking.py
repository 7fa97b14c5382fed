"""The probability that is shown is a fit, not a decoration."""

import numpy as np

from matching.ranking import Ranking, fit_probability


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
