"""Why a photo and a caption match: attention and gates of one pair, ready to be shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from matching.engine import Engine
from matching.image import photo_pixels, region_boxes, region_windows
from matching.text import Caption


@dataclass(frozen=True)
class EncodedPhoto:
    embedding: np.ndarray  # (D,)
    side: np.ndarray  # (R, S)


@dataclass(frozen=True)
class Explanation:
    caption: Caption
    logit: float
    score: float
    probability: float
    stage1_score: float
    word_attention: np.ndarray  # (N, R): where each word looks; rows sum to 1
    word_gates: np.ndarray  # (N,)
    region_gates: np.ndarray  # (R,)

    def to_json(self) -> dict[str, Any]:
        def rounded(array: np.ndarray) -> list:
            return np.round(array.astype(np.float64), 6).tolist()

        return {
            "caption": self.caption.text,
            "words": list(self.caption.words),
            "logit": self.logit,
            "score": self.score,
            "probability": self.probability,
            "stage1_score": self.stage1_score,
            "word_gates": rounded(self.word_gates),
            "region_gates": rounded(self.region_gates),
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
    stage1 = photo.embedding @ embeddings[0]
    score = engine.ranking.scores(np.array([pair.logit]), stage1)
    probability = float(engine.ranking.probabilities(score)[0])
    return Explanation(
        caption,
        pair.logit,
        float(score[0]),
        probability,
        float(stage1),
        pair.word_attention,
        pair.word_gates,
        pair.region_gates,
    )


def cell_map(values: np.ndarray) -> np.ndarray:
    """Values of regions (..., R) on the cells of the photo (..., 8, 8).

    Regions overlap: a cell shows the mean of the regions that cover it.
    """
    covers = (region_windows() > 0).astype(np.float32)  # (R, cells)
    cells = values @ (covers / covers.sum(0))
    side = int(np.sqrt(covers.shape[1]))
    return cells.reshape(*values.shape[:-1], side, side)
