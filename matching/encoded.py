"""A split of a data set as both stages see it, and its evaluation (torch-free).

Whoever encodes (torch or an engine) fills the arrays; whoever scores pairs is a function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from matching.metrics import (
    Retrieval,
    evaluate_directions,
    evaluate_scores,
    shortlist,
    two_stage_scores,
)
from matching.ranking import Ranking, fit_probability

SHORTLIST = 100


@dataclass(frozen=True)
class Encoded:
    """Photos and captions of a split; captions of a photo stand together, in the photos' order."""

    photo_embeddings: np.ndarray  # (P, D)
    photo_sides: np.ndarray  # (P, R, S)
    caption_embeddings: np.ndarray  # (C, D)
    caption_sides: list[np.ndarray]  # C arrays (N, S), each of its own length
    photo_of_caption: np.ndarray  # (C,)

    @property
    def stage1(self) -> np.ndarray:
        """Cosine similarities: (P, C)."""
        return self.photo_embeddings @ self.caption_embeddings.T


@dataclass(frozen=True)
class GridScores:
    """Scores of every photo of a batch with every caption of a batch."""

    logit: np.ndarray  # (P, C)
    word_gates: np.ndarray  # (P, C, N), 0 outside the caption
    region_gates: np.ndarray  # (P, C, R)


# photo_sides (P, R, S), caption_sides (C, N, S), word_mask (C, N) -> GridScores
ScoreGrid = Callable[[np.ndarray, np.ndarray, np.ndarray], GridScores]


@dataclass(frozen=True)
class PairList:
    """The shortlist of every query with its CAMP logits and mean gates."""

    listed: np.ndarray  # (queries, k)
    logits: np.ndarray  # (queries, k)
    word_gates: np.ndarray  # (queries, k), mean over the words
    region_gates: np.ndarray  # (queries, k), mean over the regions


def pad_captions(sides: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(C, N, S) and the word mask (C, N)."""
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


def _score_lists(listed: np.ndarray, grids: Any, score: ScoreGrid, name: str) -> PairList:
    logits, word_gates, region_gates = (np.empty(listed.shape, np.float32) for _ in range(3))
    bar = tqdm(grids, f"CAMP {name}", total=len(listed), leave=False, mininterval=5)
    for row, (photos, sides) in enumerate(bar):
        captions, mask = pad_captions(sides)
        scores = score(photos.astype(np.float32), captions, mask)
        logits[row] = scores.logit.ravel()
        word_gates[row] = (scores.word_gates.sum(-1) / mask.sum(-1)).ravel()
        region_gates[row] = scores.region_gates.mean(-1).ravel()
    return PairList(listed, logits, word_gates, region_gates)


def score_everything(encoded: Encoded, score: ScoreGrid) -> np.ndarray:
    """CAMP logits of all pairs: (P, C). Captions of like length share a run."""
    logits = np.empty((len(encoded.photo_sides), len(encoded.caption_sides)), np.float32)
    order = np.argsort([len(side) for side in encoded.caption_sides], kind="stable")
    for start in tqdm(range(0, len(order), 8), "CAMP over everything", mininterval=5):
        rows = order[start : start + 8]
        captions, mask = pad_captions([encoded.caption_sides[c] for c in rows])
        for first in range(0, len(logits), 16):  # cache-sized runs
            photos = encoded.photo_sides[first : first + 16].astype(np.float32)
            logits[first : first + 16, rows] = score(photos, captions, mask).logit
    return logits


def random_pair_gates(encoded: Encoded, score: ScoreGrid, pairs: int = 2000) -> dict[str, float]:
    """Mean gates of mismatched pairs drawn at random, as the paper counts its negatives."""
    rng = np.random.default_rng(0)
    captions = rng.integers(0, len(encoded.caption_sides), pairs)
    shifts = rng.integers(1, len(encoded.photo_sides), pairs)  # never the caption's own photo
    photos = (encoded.photo_of_caption[captions] + shifts) % len(encoded.photo_sides)
    grids = (
        (encoded.photo_sides[photo][None], [encoded.caption_sides[caption]])
        for caption, photo in zip(captions, photos, strict=True)
    )
    drawn = _score_lists(photos[:, None], grids, score, "random pairs")
    return {
        "word_mismatched": round(float(drawn.word_gates.mean()), 4),
        "region_mismatched": round(float(drawn.region_gates.mean()), 4),
    }


@dataclass(frozen=True)
class Reranked:
    """Both directions of a split, scored over the shortlists of stage 1."""

    encoded: Encoded
    by_caption: PairList  # photos for each caption
    by_photo: PairList  # captions for each photo

    @staticmethod
    def of(encoded: Encoded, score: ScoreGrid, size: int = SHORTLIST) -> Reranked:
        everything = np.arange(len(encoded.caption_sides))
        photos = min(size, len(encoded.photo_sides))
        captions = min(size, len(encoded.caption_sides))
        return Reranked(
            encoded,
            rerank_photos(encoded, score, photos, everything),
            rerank_captions(encoded, score, captions),
        )

    def retrieval(self, stage1_weight: float) -> Retrieval:
        stage1 = self.encoded.stage1
        by_photo = self._combined(stage1, self.by_photo, stage1_weight)
        by_caption = self._combined(stage1.T, self.by_caption, stage1_weight).T
        return evaluate_directions(by_photo, by_caption, self.encoded.photo_of_caption)

    @staticmethod
    def _combined(stage1: np.ndarray, pairs: PairList, weight: float) -> np.ndarray:
        cosines = np.take_along_axis(stage1, pairs.listed, 1)
        return two_stage_scores(stage1, pairs.listed, pairs.logits + weight * cosines)

    def gates(self) -> dict[str, float]:
        """Mean gates of matching pairs, and of the mismatched ones that stage 1 lists (hard)."""
        matches = self.by_caption.listed == self.encoded.photo_of_caption[:, None]
        sides = (("word", self.by_caption.word_gates), ("region", self.by_caption.region_gates))
        return {
            f"{side}_{name}": round(float(gates[chosen].mean()), 4)
            for side, gates in sides
            for name, chosen in (("matching", matches), ("mismatched_hard", ~matches))
        }

    def choose_ranking(self, weights: tuple[float, ...] = tuple(range(0, 101, 4))) -> Ranking:
        """The weight of stage 1 with the best rsum, and the probability that fits it."""
        best = max(weights, key=lambda weight: self.retrieval(weight).rsum)
        cosines = np.take_along_axis(self.encoded.stage1.T, self.by_caption.listed, 1)
        matches = self.by_caption.listed == self.encoded.photo_of_caption[:, None]
        scores = (self.by_caption.logits + best * cosines).ravel()
        slope, intercept = fit_probability(scores, matches.ravel().astype(np.float64))
        return Ranking(float(best), round(slope, 5), round(intercept, 5))


def evaluate_reranked(
    reranked: Reranked,
    score: ScoreGrid,
    ranking: Ranking,
    everything: bool = False,
) -> dict[str, Any]:
    """The document that `python -m matching.evaluate` prints."""
    encoded = reranked.encoded
    truth = encoded.photo_of_caption[:, None]
    document = {
        "photos": len(encoded.photo_sides),
        "captions": len(encoded.caption_sides),
        "stage1": evaluate_scores(encoded.stage1, encoded.photo_of_caption).to_json(),
        "rerank": reranked.retrieval(ranking.stage1_weight).to_json(),
        "rerank_camp_alone": reranked.retrieval(0.0).to_json(),
        "stage1_weight": ranking.stage1_weight,
        "shortlist": {
            "size": SHORTLIST,
            "photo_found": round(
                100 * float((reranked.by_caption.listed == truth).any(1).mean()), 2
            ),
        },
        "gates": {**reranked.gates(), **random_pair_gates(encoded, score)},
    }
    if everything:
        logits = score_everything(encoded, score)
        document["camp_over_everything"] = evaluate_scores(
            logits, encoded.photo_of_caption
        ).to_json()
    return document
