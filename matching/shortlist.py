"""How many items a shortlist holds, and ranks of two stages (torch-free).

Stage 2 ranks the shortlist of stage 1; everything else keeps the order of stage 1 below it
(CAMP, supplementary material: the best 10 % of each query are scored again).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ShortlistSize:
    """A number of items, or a percentage of those there are."""

    amount: float
    percent: bool = False

    def __post_init__(self) -> None:
        fits = 0 < self.amount <= 100 if self.percent else self.amount >= 1
        if not fits or not (self.percent or float(self.amount).is_integer()):
            raise ValueError(
                f"the size of a shortlist must be a whole number from 1 or a percentage up to "
                f'100%, got "{self}"; write for example 100 or 10%'
            )

    @staticmethod
    def parse(text: str) -> ShortlistSize:
        """Reads "100" or "10%"."""
        number = text.strip()
        percent = number.endswith("%")
        try:
            amount = float(number.removesuffix("%"))
        except ValueError:
            amount = math.nan
        if not math.isfinite(amount):
            raise ValueError(
                f"the size of a shortlist must be a number or a percentage, "
                f'got "{text}"; write for example 100 or 10%'
            )
        return ShortlistSize(amount, percent)

    def of(self, total: int) -> int:
        """How many of `total` items are listed: at least 1, never more than there are."""
        # Percentages round down; the small term is for 7 % of 100, which is 7.000000000000001.
        share = self.amount * total / 100 + 1e-9 if self.percent else self.amount
        return min(max(1, int(share)), total)

    def __str__(self) -> str:
        return f"{self.amount:g}%" if self.percent else f"{self.amount:.10g}"

    def to_json(self) -> int | str:
        return str(self) if self.percent else int(self.amount)


def as_shortlist_size(size: int | str | ShortlistSize) -> ShortlistSize:
    """Takes 100, "100", "10%" or the size itself."""
    if isinstance(size, ShortlistSize):
        return size
    return ShortlistSize.parse(size) if isinstance(size, str) else ShortlistSize(size)


def two_stage_scores(stage1: np.ndarray, listed: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Scores that rank the shortlist by stage 2 and the rest below it in the order of stage 1.

    Args:
        stage1: (queries, items).
        listed: (queries, k) items of the shortlist.
        scores: (queries, k) their scores of stage 2.

    Returns:
        (queries, items) float64.
    """
    # float64 before the shift: far from 0, float32 would turn close similarities into ties.
    combined = stage1.astype(np.float64)
    combined += float(scores.min()) - 1 - combined.max()
    np.put_along_axis(combined, listed, scores.astype(np.float64), axis=1)
    return combined


def two_stage_ranks(
    stage1_ranks: np.ndarray,
    listed: np.ndarray,
    scores: np.ndarray,
    true: np.ndarray,
) -> np.ndarray:
    """The rank of the best true item of each query, without a matrix of all pairs.

    A true item that is not listed keeps its rank of stage 1: exactly the listed ones are above it.

    Args:
        stage1_ranks: (queries,) of stage 1 alone.
        listed: (queries, k) items of the shortlist, the best k of stage 1.
        scores: (queries, k) their scores of stage 2.
        true: (queries, k) bool, which of the listed items are true.
    """
    if np.isnan(scores).any():
        raise ValueError("scores must be numbers, got NaN; look for the scorer that made them")
    best = np.where(true, scores, -np.inf).max(1, keepdims=True)
    equal = scores == best
    # Among true items with the best score, the lowest index is found.
    found = np.where(true & equal, listed, np.iinfo(np.int64).max).min(1, keepdims=True)
    ranks = (scores > best).sum(1) + (equal & (listed < found)).sum(1)
    return np.where(true.any(1), ranks, stage1_ranks)
