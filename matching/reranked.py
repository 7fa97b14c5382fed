"""Both stages of a split: the scorer over the shortlists of stage 1, and the figures of it all.

Torch-free, as matching.encoded, which holds what is scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from matching.calibration import expected_calibration_error
from matching.encoded import (
    Encoded,
    PairList,
    ScoreGrid,
    random_pair_gates,
    rerank_captions,
    rerank_photos,
    score_everything,
)
from matching.ensemble import Directions
from matching.metrics import NO_POSITIVE, Recall, Retrieval, evaluate_folds, evaluate_scores
from matching.ranking import Ranking, fit_probability, significant, weight_grid
from matching.shortlist import (
    ShortlistSize,
    as_shortlist_size,
    two_stage_ranks,
    two_stage_scores,
)

SHORTLIST = 100
_LEVEL_RSUM = 1.0  # a quarter of the sampling error of 1,000 photos


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
        """Of the listed pairs, less popularity: by photo (P, k), by caption (C, k)."""
        similarities = self.encoded.less_popularity
        return (
            np.take_along_axis(similarities, self.by_photo.listed, 1),
            np.take_along_axis(similarities.T, self.by_caption.listed, 1),
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

    def calibration(self, ranking: Ranking) -> dict[str, float]:
        """Of the probabilities that the page shows, for caption searches.

        `listed`: over all listed photos; `first`: over the first results alone, with the mean
        probability that they show and the percentage of them that is right.
        """
        probabilities = ranking.probabilities(self._scores(ranking.stage1_weight)[1])
        first = probabilities.argmax(1)[:, None]
        shown = np.take_along_axis(probabilities, first, 1).ravel()
        right = np.take_along_axis(self.true_photos, first, 1).ravel()
        listed = expected_calibration_error(probabilities.ravel(), self.true_photos.ravel())
        return {
            "listed_error": round(listed, 4),
            "first_error": round(expected_calibration_error(shown, right), 4),
            "first_shown": round(100 * float(shown.mean()), 1),
            "first_right": round(100 * float(right.mean()), 1),
        }

    def choose_ranking(self, weights: Sequence[float] | None = None) -> Ranking:
        """The smallest weight of stage 1 that is level with the best, and the probability for it.

        The less stage 1 weighs, the more the scorer does, which is what the page explains.
        """
        if weights is None:
            logits = [self.by_photo.logits, self.by_caption.logits]
            weights = weight_grid(logits, list(self._similarities))
        rsums = {weight: self.retrieval(weight).rsum for weight in sorted(weights)}
        level = max(rsums.values()) - _LEVEL_RSUM
        chosen = next(weight for weight, rsum in rsums.items() if rsum >= level)
        scores = self._scores(chosen)[1].ravel()
        slope, intercept = fit_probability(scores, self.true_photos.ravel().astype(np.float64))
        return Ranking(float(chosen), significant(slope, 6), significant(intercept, 6))


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
    if encoded.popularity:
        alone = evaluate_scores(encoded.less_popularity, encoded.photo_of_caption)
        document["stage1_less_popularity"] = alone.to_json()
    document |= _rerank_document([reranked], weight)
    document["calibration"] = reranked.calibration(ranking)
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
