"""Why a photo and a caption match: attention and gates of one pair, ready to be shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from matching.engine import Engine, PairExplanation
from matching.image import photo_pixels, region_boxes, region_windows
from matching.text import Caption


@dataclass(frozen=True)
class EncodedPhoto:
    embedding: np.ndarray  # (E,)
    side: np.ndarray  # (X + R, S)


@dataclass(frozen=True)
class Explanation:
    """None: the scorer has no such part."""

    caption: Caption
    logit: float
    score: float
    probability: float
    stage1_score: float
    popularity: float  # of photo and caption together: what stage1_score is lowered by
    word_attention: np.ndarray | None  # (N, R): where each word looks; rows sum to 1
    # `words`, or `regions` if only regions look: word_attention is then made from theirs.
    attention_of: str | None
    word_gates: np.ndarray | None  # (N,)
    region_gates: np.ndarray | None  # (R,)

    def to_json(self) -> dict[str, Any]:
        def rounded(array: np.ndarray | None) -> list | None:
            return None if array is None else np.round(array.astype(np.float64), 6).tolist()

        return {
            "caption": self.caption.text,
            "words": list(self.caption.words),
            "logit": self.logit,
            "score": self.score,
            "probability": self.probability,
            "stage1_score": self.stage1_score,
            "popularity": self.popularity,
            "word_gates": rounded(self.word_gates),
            "region_gates": rounded(self.region_gates),
            "attention_of": self.attention_of,
            "word_attention": rounded(self.word_attention),
            "region_boxes": rounded(region_boxes()),
        }


def encode_photo(engine: Engine, photo: Image.Image) -> EncodedPhoto:
    """photo: as matching.image.open_photo gives it."""
    embeddings, sides = engine.encode_photos([photo_pixels(photo)])
    return EncodedPhoto(embeddings[0], sides[0])


def explain(engine: Engine, photo: EncodedPhoto, text: str) -> Explanation:
    caption = engine.captions.read(text)
    embeddings, sides = engine.encode_captions([caption])
    pair = engine.explain_pair(photo.side, sides[0])
    stage1 = float(engine.similarity(photo.embedding[None], embeddings)[0, 0])
    of_photo = engine.popularity.of_photos(photo.embedding[None])
    popularity = float((of_photo + engine.popularity.of_captions(embeddings))[0])
    score = engine.ranking.scores(np.array([pair.logit]), np.float32(stage1 - popularity))
    return Explanation(
        caption,
        pair.logit,
        float(score[0]),
        float(engine.ranking.probabilities(score)[0]),
        stage1,
        popularity,
        _word_attention(pair),
        attention_of(engine),
        pair.word_gates,
        pair.region_gates,
    )


def attention_of(engine: Engine) -> str | None:
    """Whose attention an engine shows: that of `words`, else that of `regions`, else none."""
    for whose in ("word", "region"):
        if f"{whose}_attention" in engine.outputs:
            return f"{whose}s"
    return None


def _word_attention(pair: PairExplanation) -> np.ndarray | None:
    if pair.word_attention is not None:
        return pair.word_attention
    return None if pair.region_attention is None else shares_of_words(pair.region_attention)


def shares_of_words(region_attention: np.ndarray) -> np.ndarray:
    """Which regions look at each word: (..., R, N) -> (..., N, R), rows sum to 1."""
    looks = np.swapaxes(region_attention, -1, -2)
    return looks / np.maximum(looks.sum(-1, keepdims=True), 1e-12)


def cell_map(values: np.ndarray) -> np.ndarray:
    """Values of regions (..., R) on the cells of the photo (..., 8, 8).

    Regions overlap: a cell shows the mean of the regions that cover it.
    """
    covers = (region_windows() > 0).astype(np.float32)  # (R, cells)
    cells = values @ (covers / covers.sum(0))
    side = int(np.sqrt(covers.shape[1]))
    return cells.reshape(*values.shape[:-1], side, side)
