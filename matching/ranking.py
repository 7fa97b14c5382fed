"""The final score of two-stage ranking and the probability that is shown for it (torch-free).

score = logit of the pair scorer + stage1_weight x (stage-1 similarity - popularity)
probability = sigmoid(slope x score + intercept)

All three numbers are chosen on `val`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Weights that are tried, as parts of (spread of the logits / spread of the similarities). With 1
# both stages move a pair equally far; 0.05 and 20 leave the word to one of them.
_RELATIVE_WEIGHTS = np.geomspace(0.05, 20, 25)


@dataclass(frozen=True)
class Ranking:
    stage1_weight: float
    slope: float
    intercept: float

    def scores(self, logits: np.ndarray, stage1: np.ndarray) -> np.ndarray:
        """stage1: similarities less the popularity of photo and caption."""
        return logits.astype(np.float32) + np.float32(self.stage1_weight) * stage1

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        odds = self.slope * scores.astype(np.float64) + self.intercept
        return 1 / (1 + np.exp(-np.clip(odds, -60, 60)))


def fit_probability(scores: np.ndarray, matches: np.ndarray) -> tuple[float, float]:
    """Platt scaling: slope and intercept of a logistic regression, by Newton's method."""
    centre, spread = scores.mean(), scores.std() + 1e-9
    x = np.stack([(scores - centre) / spread, np.ones_like(scores)], 1).astype(np.float64)
    weights = np.zeros(2)
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -60, 60)))
        gradient = x.T @ (p - matches)
        hessian = (x * (p * (1 - p))[:, None]).T @ x + 1e-6 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        weights -= step
        if np.abs(step).max() < 1e-9:
            break
    return float(weights[0] / spread), float(weights[1] - weights[0] * centre / spread)


def weight_grid(logits: list[np.ndarray], similarities: list[np.ndarray]) -> list[float]:
    """Weights of stage 1 to choose from, 0 first, then rising, for scores of any scale.

    Logits of CAMP lie tens apart, those of SCAN and MMCA less than one. What orders a shortlist is
    the spread inside it, so that is what is compared.

    Args:
        logits: of each direction (queries, k).
        similarities: likewise, of the same pairs.
    """
    spread, spread1 = (
        float(np.concatenate([a.astype(np.float64).std(1) for a in arrays]).mean())
        for arrays in (logits, similarities)
    )
    if spread1 == 0:  # stage 1 says nothing
        return [0.0]
    ratio = spread / spread1 if spread > 0 else 1.0
    return [0.0, *(significant(ratio * weight, 4) for weight in _RELATIVE_WEIGHTS)]


def significant(number: float, digits: int) -> float:
    """The number with so many significant digits, whatever its size."""
    return float(f"{number:.{digits}g}")
