"""Ranks and recalls as the papers define them (torch-free).

Ranks count from 0. A tie goes to the lower index, everywhere the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class Recall:
    """Recall at 1, 5 and 10 in percent and the median rank, counted from 1."""

    r1: float
    r5: float
    r10: float
    medr: int

    @staticmethod
    def of(ranks: np.ndarray) -> Recall:
        shares = [round(100 * float((ranks < k).mean()), 2) for k in (1, 5, 10)]
        return Recall(*shares, int(np.floor(np.median(ranks))) + 1)


@dataclass(frozen=True)
class Retrieval:
    """Both directions: a photo looks for its captions (i2t), a caption for its photo (t2i)."""

    i2t: Recall
    t2i: Recall

    @property
    def rsum(self) -> float:
        parts = (self.i2t, self.t2i)
        return round(sum(r.r1 + r.r5 + r.r10 for r in parts), 2)

    def to_json(self) -> dict:
        return {"i2t": asdict(self.i2t), "t2i": asdict(self.t2i), "rsum": self.rsum}


def true_ranks(scores: np.ndarray, true: np.ndarray) -> np.ndarray:
    """The rank of the best true item of each query.

    Args:
        scores: (queries, items); -inf for items that were not scored.
        true: (queries, items) bool with at least one true item a query.
    """
    best = np.where(true, scores, -np.inf).max(1, keepdims=True)
    # The first true item that reaches the best score is the one that is found.
    found = np.argmax(true & (scores == best), axis=1)
    before = np.arange(scores.shape[1])[None, :] < found[:, None]
    return (scores > best).sum(1) + ((scores == best) & before).sum(1)


def evaluate_scores(scores: np.ndarray, photo_of_caption: np.ndarray) -> Retrieval:
    """One matrix for both directions. scores: (photos, captions)."""
    return evaluate_directions(scores, scores, photo_of_caption)


def evaluate_directions(
    by_photo: np.ndarray,
    by_caption: np.ndarray,
    photo_of_caption: np.ndarray,
) -> Retrieval:
    """A matrix for each direction, as two-stage ranking needs. Both are (photos, captions)."""
    true = np.arange(len(by_photo))[:, None] == photo_of_caption[None, :]
    i2t = Recall.of(true_ranks(by_photo, true))
    t2i = Recall.of(true_ranks(by_caption.T, true.T))
    return Retrieval(i2t, t2i)


def shortlist(scores: np.ndarray, size: int) -> np.ndarray:
    """The best `size` items of each query, best first, ties to the lower index: (queries, size)."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :size]


def two_stage_scores(stage1: np.ndarray, listed: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Ranks the shortlist by `scores` and everything else below it in the order of stage 1.

    Args:
        stage1: (queries, items).
        listed: (queries, k) items of the shortlist.
        scores: (queries, k) their scores of stage 2.
    """
    below = stage1 - stage1.max() - 1 + scores.min()
    combined = below.astype(np.float64)
    np.put_along_axis(combined, listed, scores.astype(np.float64), axis=1)
    return combined
