"""The final score of two-stage ranking and the probability that is shown for it (torch-free).

score = CAMP logit + stage1_weight x stage-1 cosine
probability = sigmoid(slope x score + intercept)

All three numbers are chosen on `val`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Ranking:
    stage1_weight: float
    slope: float
    intercept: float

    def scores(self, logits: np.ndarray, stage1: np.ndarray) -> np.ndarray:
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
