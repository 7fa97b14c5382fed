"""A split of a data set as both stages see it, and its evaluation (torch-free).

Whoever encodes (torch or an engine) fills the arrays; whoever scores pairs is a function. Any
embedder goes with any pair scorer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from tqdm import tqdm

from matching.metrics import (
    check_owners,
    direction_ranks,
    folds_of,
    shortlist,
)
from matching.popularity import Popularity

SHORTLIST = 100

# queries (Q, E), items (I, E) -> (Q, I)
Similarity = Callable[[np.ndarray, np.ndarray], np.ndarray]


def dot_products(queries: np.ndarray, items: np.ndarray) -> np.ndarray:
    """(Q, E), (I, E) -> (Q, I): cosines, if the embeddings are normalised."""
    return queries @ items.T


@dataclass(frozen=True)
class Encoded:
    """Photos and captions of a split; without sides there is stage 1 alone."""

    photo_embeddings: np.ndarray  # (P, E)
    photo_sides: np.ndarray | None  # (P, X + R, S)
    caption_embeddings: np.ndarray  # (C, E)
    caption_sides: list[np.ndarray] | None  # C arrays (X + N, S), each of its own length
    photo_of_caption: np.ndarray  # (C,)
    similarity: Similarity = dot_products
    popularity: Popularity = Popularity.none()

    def __post_init__(self) -> None:
        photos, captions = len(self.photo_embeddings), len(self.caption_embeddings)
        check_owners(self.photo_of_caption, photos, captions)
        if (self.photo_sides is None) != (self.caption_sides is None):
            raise ValueError("sides must be there for photos and captions, or for neither")
        if self.has_sides and (len(self.photo_sides), len(self.caption_sides)) != (
            photos,
            captions,
        ):
            raise ValueError(
                f"{photos} photos and {captions} captions are embedded, but "
                f"{len(self.photo_sides)} photos and {len(self.caption_sides)} captions have sides"
            )

    @property
    def has_sides(self) -> bool:
        return self.photo_sides is not None and self.caption_sides is not None

    @cached_property
    def stage1(self) -> np.ndarray:
        """Similarities of stage 1, computed once: (P, C) float32."""
        similarities = self.similarity(self.photo_embeddings, self.caption_embeddings)
        return np.asarray(similarities, np.float32)

    @cached_property
    def less_popularity(self) -> np.ndarray:
        """The similarities of stage 1 as the final score takes them: (P, C) float32."""
        photos = self.popularity.of_photos(self.photo_embeddings)
        captions = self.popularity.of_captions(self.caption_embeddings)
        return self.stage1 - photos[:, None] - captions

    @cached_property
    def stage1_ranks(self) -> tuple[np.ndarray, np.ndarray]:
        """Ranks of stage 1 alone for photos (P,) and for captions (C,)."""
        return direction_ranks(self.stage1, self.stage1, self.photo_of_caption)

    def folds(self, count: int) -> list[Encoded]:
        """Consecutive blocks of photos with their captions, each a split of its own."""
        return [
            Encoded(
                self.photo_embeddings[fold.photos],
                self.photo_sides[fold.photos] if self.has_sides else None,
                self.caption_embeddings[fold.captions],
                [self.caption_sides[c] for c in fold.captions] if self.has_sides else None,
                fold.photo_of_caption,
                self.similarity,
                self.popularity,
            )
            for fold in folds_of(self.photo_of_caption, len(self.photo_embeddings), count)
        ]


@dataclass(frozen=True)
class GridScores:
    """Scores of every photo of a batch with every caption of a batch."""

    logit: np.ndarray  # (P, C)
    word_gates: np.ndarray | None = None  # (P, C, N), 0 outside the caption; None: no gates
    region_gates: np.ndarray | None = None  # (P, C, R)


# photo_sides (P, X + R, S), caption_sides (C, X + N, S), mask (C, X + N) -> GridScores
ScoreGrid = Callable[[np.ndarray, np.ndarray, np.ndarray], GridScores]


@dataclass(frozen=True)
class PairList:
    """The shortlist of every query with the scorer's logits and its mean gates, if it has any."""

    listed: np.ndarray  # (queries, k)
    logits: np.ndarray  # (queries, k)
    word_gates: np.ndarray | None  # (queries, k), mean over the words
    region_gates: np.ndarray | None  # (queries, k), mean over the regions


def pad_captions(sides: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(C, X + N, S) and the mask (C, X + N)."""
    longest = max(len(side) for side in sides)
    padded = np.zeros((len(sides), longest, sides[0].shape[1]), np.float32)
    mask = np.zeros((len(sides), longest), bool)
    for row, side in enumerate(sides):
        padded[row, : len(side)] = side
        mask[row, : len(side)] = True
    return padded, mask


def rerank_photos(encoded: Encoded, score: ScoreGrid, size: int, captions: np.ndarray) -> PairList:
    """For each of some captions its best photos of stage 1, scored by stage 2."""
    listed = shortlist(encoded.stage1.T[captions], size)
    return _score_lists(
        listed,
        (
            (encoded.photo_sides[photos], [encoded.caption_sides[caption]])
            for caption, photos in zip(captions, listed, strict=True)
        ),
        score,
        "t2i",
    )


def rerank_captions(encoded: Encoded, score: ScoreGrid, size: int) -> PairList:
    """For each photo its best captions of stage 1, scored by stage 2."""
    listed = shortlist(encoded.stage1, size)
    return _score_lists(
        listed,
        (
            (encoded.photo_sides[photo][None], [encoded.caption_sides[c] for c in captions])
            for photo, captions in enumerate(listed)
        ),
        score,
        "i2t",
    )


def _score_lists(
    listed: np.ndarray,
    grids: Iterable[tuple[np.ndarray, list[np.ndarray]]],
    score: ScoreGrid,
    name: str,
) -> PairList:
    logits, word_gates, region_gates = (np.empty(listed.shape, np.float32) for _ in range(3))
    gated = True
    bar = tqdm(grids, f"pairs {name}", total=len(listed), leave=False, mininterval=5)
    for row, (photos, sides) in enumerate(bar):
        captions, mask = pad_captions(sides)
        scores = score(photos.astype(np.float32), captions, mask)
        logits[row] = scores.logit.ravel()
        gated = gated and scores.word_gates is not None and scores.region_gates is not None
        if gated:
            # Gates are of words; extra positions at the front of a side have none.
            words = mask[:, mask.shape[1] - scores.word_gates.shape[-1] :].sum(-1)
            word_gates[row] = (scores.word_gates.sum(-1) / words).ravel()
            region_gates[row] = scores.region_gates.mean(-1).ravel()
    return PairList(listed, logits, *((word_gates, region_gates) if gated else (None, None)))


def score_everything(encoded: Encoded, score: ScoreGrid) -> np.ndarray:
    """The scorer's logits of all pairs: (P, C). Captions of like length share a run."""
    logits = np.empty((len(encoded.photo_sides), len(encoded.caption_sides)), np.float32)
    order = np.argsort([len(side) for side in encoded.caption_sides], kind="stable")
    for start in tqdm(range(0, len(order), 8), "all pairs", mininterval=5):
        rows = order[start : start + 8]
        captions, mask = pad_captions([encoded.caption_sides[c] for c in rows])
        for first in range(0, len(logits), 16):  # cache-sized runs
            photos = encoded.photo_sides[first : first + 16].astype(np.float32)
            logits[first : first + 16, rows] = score(photos, captions, mask).logit
    return logits


def random_pair_gates(encoded: Encoded, score: ScoreGrid, pairs: int = 2000) -> dict[str, float]:
    """Mean gates of mismatched pairs drawn at random, as the paper counts its negatives."""
    if len(encoded.photo_sides) < 2:
        return {}
    rng = np.random.default_rng(0)
    captions = rng.integers(0, len(encoded.caption_sides), pairs)
    shifts = rng.integers(1, len(encoded.photo_sides), pairs)  # never the caption's own photo
    photos = (encoded.photo_of_caption[captions] + shifts) % len(encoded.photo_sides)
    grids = (
        (encoded.photo_sides[photo][None], [encoded.caption_sides[caption]])
        for caption, photo in zip(captions, photos, strict=True)
    )
    drawn = _score_lists(photos[:, None], grids, score, "at random")
    if drawn.word_gates is None or drawn.region_gates is None:
        return {}
    return {
        "word_mismatched": round(float(drawn.word_gates.mean()), 4),
        "region_mismatched": round(float(drawn.region_gates.mean()), 4),
    }
