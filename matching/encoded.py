"""A split of a data set as both stages see it, and its evaluation (torch-free).

Whoever encodes (torch or an engine) fills the arrays; whoever scores pairs is a function. Any
embedder goes with any pair scorer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tqdm import tqdm

from matching.ensemble import Directions
from matching.metrics import (
    NO_POSITIVE,
    Recall,
    Retrieval,
    check_owners,
    direction_ranks,
    evaluate_folds,
    evaluate_scores,
    folds_of,
    shortlist,
)
from matching.ranking import Ranking, fit_probability, significant, weight_grid
from matching.shortlist import (
    ShortlistSize,
    as_shortlist_size,
    two_stage_ranks,
    two_stage_scores,
)

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


@dataclass(frozen=True)
class Reranked:
    """Both directions of a split, scored over the shortlists of stage 1."""

    encoded: Encoded
    by_caption: PairList  # photos for each caption
    by_photo: PairList  # captions for each photo
    size: ShortlistSize

    @staticmethod
    def of(
        encoded: Encoded,
        score: ScoreGrid,
        size: int | str | ShortlistSize = SHORTLIST,
    ) -> Reranked:
        if not encoded.has_sides:
            raise ValueError("there are no sides to score pairs with; use evaluate_stage1")
        size = as_shortlist_size(size)
        photos, captions = encoded.stage1.shape
        return Reranked(
            encoded,
            rerank_photos(encoded, score, size.of(photos), np.arange(captions)),
            rerank_captions(encoded, score, size.of(captions)),
            size,
        )

    @cached_property
    def true_photos(self) -> np.ndarray:
        """Which listed photos are those of the caption: (C, k) bool."""
        return self.by_caption.listed == self.encoded.photo_of_caption[:, None]

    @cached_property
    def true_captions(self) -> np.ndarray:
        """Which listed captions are of the photo: (P, k) bool."""
        owners = self.encoded.photo_of_caption[self.by_photo.listed]
        return owners == np.arange(len(owners))[:, None]

    @cached_property
    def _similarities(self) -> tuple[np.ndarray, np.ndarray]:
        """Of stage 1 for the listed pairs: by photo (P, k), by caption (C, k)."""
        stage1 = self.encoded.stage1
        return (
            np.take_along_axis(stage1, self.by_photo.listed, 1),
            np.take_along_axis(stage1.T, self.by_caption.listed, 1),
        )

    def _scores(self, weight: float) -> tuple[np.ndarray, np.ndarray]:
        ranking = Ranking(weight, 1.0, 0.0)
        pairs = (self.by_photo, self.by_caption)
        by_photo, by_caption = (
            ranking.scores(pair.logits, similarities)
            for pair, similarities in zip(pairs, self._similarities, strict=True)
        )
        return by_photo, by_caption

    def ranks(self, stage1_weight: float) -> tuple[np.ndarray, np.ndarray]:
        """Of both stages, for photos (P,) and for captions (C,)."""
        by_photo, by_caption = self._scores(stage1_weight)
        photos, captions = self.encoded.stage1_ranks
        return (
            two_stage_ranks(photos, self.by_photo.listed, by_photo, self.true_captions),
            two_stage_ranks(captions, self.by_caption.listed, by_caption, self.true_photos),
        )

    def retrieval(self, stage1_weight: float) -> Retrieval:
        return Retrieval(*(Recall.of(ranks) for ranks in self.ranks(stage1_weight)))

    def directions(self, stage1_weight: float) -> Directions:
        """Scores of all pairs for each direction, as an ensemble takes them."""
        stage1 = self.encoded.stage1
        by_photo, by_caption = self._scores(stage1_weight)
        return Directions(
            two_stage_scores(stage1, self.by_photo.listed, by_photo),
            two_stage_scores(stage1.T, self.by_caption.listed, by_caption).T,
        )

    def found(self) -> dict[str, float]:
        """How often, in percent, a shortlist holds the photo, or any caption of the photo."""
        has_caption = self.encoded.stage1_ranks[0] != NO_POSITIVE
        return {
            "photo_found": round(100 * float(self.true_photos.any(1).mean()), 2),
            "caption_found": round(
                100 * float(self.true_captions[has_caption].any(1).mean()),
                2,
            ),
        }

    def gates(self) -> dict[str, float]:
        """Mean gates of matching pairs, and of the mismatched ones that stage 1 lists (hard)."""
        sides = (("word", self.by_caption.word_gates), ("region", self.by_caption.region_gates))
        chosen = (("matching", self.true_photos), ("mismatched_hard", ~self.true_photos))
        return {
            f"{side}_{name}": round(float(gates[pairs].mean()), 4)
            for side, gates in sides
            for name, pairs in chosen
            if gates is not None and pairs.any()
        }

    def choose_ranking(self, weights: Sequence[float] | None = None) -> Ranking:
        """The weight of stage 1 with the best rsum, and the probability that fits it.

        Among equally good weights the smallest is taken.
        """
        if weights is None:
            logits = [self.by_photo.logits, self.by_caption.logits]
            weights = weight_grid(logits, list(self._similarities))
        best = max(sorted(weights), key=lambda weight: self.retrieval(weight).rsum)
        scores = self._scores(best)[1].ravel()
        slope, intercept = fit_probability(scores, self.true_photos.ravel().astype(np.float64))
        return Ranking(float(best), significant(slope, 6), significant(intercept, 6))


def evaluate_stage1(encoded: Encoded, folds: int = 1) -> dict[str, Any]:
    """The document of an embedder without a pair scorer."""
    photos, captions = encoded.stage1.shape
    document = {
        "photos": photos,
        "captions": captions,
        "stage1": Retrieval(*(Recall.of(r) for r in encoded.stage1_ranks)).to_json(),
    }
    if folds > 1:
        inside = evaluate_folds(encoded.stage1, encoded.stage1, encoded.photo_of_caption, folds)
        document["folds"] = {
            "count": folds,
            "photos": photos // folds,
            "stage1": inside.to_json(),
        }
    return document


def evaluate_reranked(
    reranked: Reranked,
    score: ScoreGrid,
    ranking: Ranking,
    everything: bool = False,
    folds: int = 1,
) -> dict[str, Any]:
    """The document that `python -m matching.evaluate` prints.

    With folds, it holds under "folds" what is measured inside each and averaged (COCO 1K); there,
    a shortlist is of the photos or captions of the fold.
    """
    encoded, weight = reranked.encoded, ranking.stage1_weight
    document = evaluate_stage1(encoded, folds)
    document |= _rerank_document([reranked], weight)
    document["gates"] = reranked.gates()
    if document["gates"]:
        document["gates"] |= random_pair_gates(encoded, score)
    if folds > 1:
        parts = [Reranked.of(fold, score, reranked.size) for fold in encoded.folds(folds)]
        document["folds"] |= _rerank_document(parts, weight)
    if everything:
        logits = score_everything(encoded, score)
        owners = encoded.photo_of_caption
        document["scorer_over_everything"] = evaluate_scores(logits, owners).to_json()
        if folds > 1:
            inside = evaluate_folds(logits, logits, owners, folds)
            document["folds"]["scorer_over_everything"] = inside.to_json()
    return document


def _rerank_document(parts: list[Reranked], weight: float) -> dict[str, Any]:
    """Figures of two stages, averaged over the parts of a split."""
    photos, captions = parts[0].encoded.stage1.shape
    found = [part.found() for part in parts]
    return {
        "rerank": _mean_retrieval(parts, weight).to_json(),
        "rerank_scorer_alone": _mean_retrieval(parts, 0.0).to_json(),
        "stage1_weight": weight,
        "shortlist": {
            "size": parts[0].size.to_json(),
            "photos": parts[0].size.of(photos),
            "captions": parts[0].size.of(captions),
            **{k: round(float(np.mean([f[k] for f in found])), 2) for k in found[0]},
        },
    }


def _mean_retrieval(parts: list[Reranked], weight: float) -> Retrieval:
    i2t, t2i = zip(*(part.ranks(weight) for part in parts), strict=True)
    return Retrieval(Recall.over(i2t), Recall.over(t2i))
