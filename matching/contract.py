"""The three graphs of an engine: names, types and axes of what goes in and comes out.

Declared once; export, TensorRT profiles, the runtime and the tests read it here. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass

from matching.image import IMAGE_SIZE, NUM_REGIONS
from matching.text import MAX_PIECES, MAX_WORDS

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Axis:
    """An axis whose length changes from run to run, with the lengths a plan is built for."""

    name: str
    least: int
    usual: int
    most: int


PHOTOS = Axis("photos", 1, 16, 128)
CAPTIONS = Axis("captions", 1, 1, 128)
PIECES = Axis("pieces", 3, 14, MAX_PIECES)
WORDS = Axis("words", 1, 11, MAX_WORDS)


@dataclass(frozen=True)
class TensorSpec:
    name: str
    dtype: str
    axes: tuple[Axis | int | str, ...]  # a string names a width that the engine decides


@dataclass(frozen=True)
class GraphSpec:
    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


IMAGE_ENCODER = GraphSpec(
    "image_encoder",
    (TensorSpec("pixels", "float32", (PHOTOS, 3, IMAGE_SIZE, IMAGE_SIZE)),),
    (
        TensorSpec("photo_embedding", "float32", (PHOTOS, "embedding_width")),
        TensorSpec("image_side", "float32", (PHOTOS, NUM_REGIONS, "side_width")),
    ),
)
TEXT_ENCODER = GraphSpec(
    "text_encoder",
    (
        TensorSpec("piece_ids", "int64", (CAPTIONS, PIECES)),
        TensorSpec("word_pieces", "float32", (CAPTIONS, WORDS, PIECES)),
    ),
    (
        TensorSpec("caption_embedding", "float32", (CAPTIONS, "embedding_width")),
        TensorSpec("caption_side", "float32", (CAPTIONS, WORDS, "side_width")),
    ),
)
PAIR_SCORER = GraphSpec(
    "pair_scorer",
    (
        TensorSpec("image_side", "float32", (PHOTOS, NUM_REGIONS, "side_width")),
        TensorSpec("caption_side", "float32", (CAPTIONS, WORDS, "side_width")),
        TensorSpec("word_mask", "bool", (CAPTIONS, WORDS)),
    ),
    (
        TensorSpec("logit", "float32", (PHOTOS, CAPTIONS)),
        TensorSpec("word_attention", "float32", (PHOTOS, CAPTIONS, WORDS, NUM_REGIONS)),
        TensorSpec("region_attention", "float32", (PHOTOS, CAPTIONS, NUM_REGIONS, WORDS)),
        TensorSpec("word_gates", "float32", (PHOTOS, CAPTIONS, WORDS)),
        TensorSpec("region_gates", "float32", (PHOTOS, CAPTIONS, NUM_REGIONS)),
    ),
)
GRAPHS = (IMAGE_ENCODER, TEXT_ENCODER, PAIR_SCORER)
