"""Ranks and recalls as the papers define them (torch-free).

Ranks count from 0. A tie goes to the lower index, everywhere the same. Queries are taken in chunks,
so that a test of 5,000 photos and 25,000 captions needs little more memory than its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

_CHUNK = 1 << 22  # scores at once
NO_POSITIVE = -1  # the rank of a query that has no true item


@dataclass(frozen=True)
class Recall:
    """Recall at 1, 5 and 10 in percent, the median and the mean rank, both counted from 1."""

    r1: float
    r5: float
    r10: float
    medr: float
    meanr: float
    left_out: int = 0  # queries without a true item: they count nowhere else

    @staticmethod
    def of(ranks: np.ndarray) -> Recall:
        return Recall.over([ranks])

    @staticmethod
    def over(folds: Sequence[np.ndarray]) -> Recall:
        """The mean of each figure over the folds (of the exact figures: rounded once)."""
        counted = [ranks[ranks != NO_POSITIVE] for ranks in folds]
        if not all(len(ranks) for ranks in counted):
            raise ValueError("no query has a true item: there is nothing to measure")
        figures = np.mean([_figures(ranks) for ranks in counted], axis=0)
        r1, r5, r10, medr, meanr = (round(float(figure), 2) for figure in figures)
        left_out = sum(len(r) for r in folds) - sum(len(r) for r in counted)
        return Recall(r1, r5, r10, int(medr) if medr == int(medr) else medr, meanr, left_out)

    def to_json(self) -> dict:
        document = asdict(self)
        if not self.left_out:
            del document["left_out"]
        return document


def _figures(ranks: np.ndarray) -> list[float]:
    recalls = [100 * float((ranks < k).mean()) for k in (1, 5, 10)]
    return [*recalls, float(np.floor(np.median(ranks))) + 1, float(ranks.mean()) + 1]


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
        return {"i2t": self.i2t.to_json(), "t2i": self.t2i.to_json(), "rsum": self.rsum}


def row_chunks(shape: tuple[int, int]) -> Iterator[slice]:
    """Slices of rows that hold a bounded number of scores."""
    step = max(1, _CHUNK // max(1, shape[1]))
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def true_ranks(scores: np.ndarray, true: np.ndarray) -> np.ndarray:
    """The rank of the best true item of each query, NO_POSITIVE where there is none: (queries,).

    Args:
        scores: (queries, items); -inf for items that were not scored.
        true: (queries, items) bool.
    """
    return _ranks(scores, lambda rows: true[rows])


def _ranks(scores: np.ndarray, true_of: Callable[[slice], np.ndarray]) -> np.ndarray:
    ranks = np.empty(len(scores), np.int64)
    for rows in row_chunks(scores.shape):
        ranks[rows] = _ranks_of_chunk(np.ascontiguousarray(scores[rows]), true_of(rows))
    return ranks


def _ranks_of_chunk(scores: np.ndarray, true: np.ndarray) -> np.ndarray:
    # A comparison with NaN is false: a broken model would be given rank 0.
    if np.isnan(scores).any():
        raise ValueError("scores must be numbers, got NaN; look for the model that made them")
    best = np.where(true, scores, -np.inf).max(1, keepdims=True)
    equal = scores == best
    # The first true item that reaches the best score is the one that is found.
    found = np.argmax(true & equal, axis=1)
    before = np.arange(scores.shape[1])[None, :] < found[:, None]
    ranks = (scores > best).sum(1) + (equal & before).sum(1)
    return np.where(true.any(1), ranks, NO_POSITIVE)


def evaluate_scores(scores: np.ndarray, true: np.ndarray) -> Retrieval:
    """One matrix for both directions. scores: (photos, captions); `true` as below."""
    return evaluate_directions(scores, scores, true)


def evaluate_directions(
    by_photo: np.ndarray,
    by_caption: np.ndarray,
    true: np.ndarray,
) -> Retrieval:
    """A matrix for each direction, as two-stage ranking needs.

    Args:
        by_photo: (photos, captions), what a photo ranks captions by.
        by_caption: (photos, captions), what a caption ranks photos by.
        true: the photo of each caption (captions,), or all true pairs (photos, captions) bool.
    """
    return Retrieval(*(Recall.of(ranks) for ranks in direction_ranks(by_photo, by_caption, true)))


def direction_ranks(
    by_photo: np.ndarray,
    by_caption: np.ndarray,
    true: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The ranks of the photos' captions (photos,) and of the captions' photos (captions,)."""
    _check(by_photo, by_caption, true)
    photos = np.arange(len(by_photo))
    if true.ndim == 2:
        return true_ranks(by_photo, true), true_ranks(by_caption.T, true.T)
    i2t = _ranks(by_photo, lambda rows: photos[rows, None] == true[None, :])
    t2i = _ranks(by_caption.T, lambda rows: true[rows, None] == photos[None, :])
    return i2t, t2i


def _check(by_photo: np.ndarray, by_caption: np.ndarray, true: np.ndarray) -> None:
    if by_photo.ndim != 2 or by_photo.shape != by_caption.shape:
        raise ValueError(
            "scores of both directions must be (photos, captions), "
            f"got {by_photo.shape} and {by_caption.shape}; transpose the second one if need be"
        )
    photos, captions = by_photo.shape
    if true.ndim == 2:
        if true.shape != by_photo.shape or true.dtype != bool:
            raise ValueError(
                f"the true pairs must be bool {by_photo.shape}, got {true.dtype} {true.shape}"
            )
    else:
        check_owners(true, photos, captions)


def check_owners(photo_of_caption: np.ndarray, photos: int, captions: int) -> None:
    """Refuses a list of the captions' photos that does not fit the scores."""
    if photo_of_caption.shape != (captions,):
        raise ValueError(
            f"photo_of_caption must name one photo for each of {captions} captions, "
            f"got shape {photo_of_caption.shape}"
        )
    if captions and not 0 <= photo_of_caption.min() <= photo_of_caption.max() < photos:
        raise ValueError(
            f"photo_of_caption must lie in 0..{photos - 1}, "
            f"got {photo_of_caption.min()}..{photo_of_caption.max()}"
        )


@dataclass(frozen=True)
class Fold:
    """Consecutive photos, and their captions."""

    photos: slice
    captions: np.ndarray
    photo_of_caption: np.ndarray  # counted inside the fold


def folds_of(photo_of_caption: np.ndarray, photos: int, folds: int) -> list[Fold]:
    """Equal consecutive blocks of photos: COCO 1K is five blocks of the 5,000 of the 5K test."""
    if folds < 1 or photos % folds:
        raise ValueError(
            f"{photos} photos cannot be cut into {folds} equal folds; "
            "take a number of folds that divides them, or another --limit"
        )
    size = photos // folds
    blocks = [slice(start, start + size) for start in range(0, photos, size)]
    captions = [np.flatnonzero(photo_of_caption // size == fold) for fold in range(folds)]
    return [
        Fold(block, chosen, photo_of_caption[chosen] - block.start)
        for block, chosen in zip(blocks, captions, strict=True)
    ]


def evaluate_folds(
    by_photo: np.ndarray,
    by_caption: np.ndarray,
    photo_of_caption: np.ndarray,
    folds: int = 5,
) -> Retrieval:
    """Each figure measured inside every fold, then averaged. Both are (photos, captions)."""
    _check(by_photo, by_caption, photo_of_caption)
    if photo_of_caption.ndim != 1:
        raise ValueError("folds need the photo of each caption (captions,), not a matrix of pairs")
    ranks = [
        direction_ranks(
            by_photo[fold.photos][:, fold.captions],
            by_caption[fold.photos][:, fold.captions],
            fold.photo_of_caption,
        )
        for fold in folds_of(photo_of_caption, len(by_photo), folds)
    ]
    i2t, t2i = zip(*ranks, strict=True)
    return Retrieval(Recall.over(i2t), Recall.over(t2i))


def shortlist(scores: np.ndarray, size: int) -> np.ndarray:
    """The best `size` items of each query, best first, ties to the lower index: (queries, size)."""
    listed = np.empty((len(scores), min(size, scores.shape[1])), np.int64)
    for rows in row_chunks(scores.shape):
        listed[rows] = np.argsort(-scores[rows], axis=1, kind="stable")[:, :size]
    return listed
