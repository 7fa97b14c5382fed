"""The three graphs of an engine: names, types and axes of what goes in and comes out.

Declared once; export, TensorRT profiles, the runtime and the tests read it here. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass

from matching.image import IMAGE_SIZE, NUM_REGIONS
from matching.text import MAX_PIECES, MAX_WORDS

FORMAT_VERSION = 2


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


_PAIR_OUTPUTS = {
    "logit": (PHOTOS, CAPTIONS),
    "word_attention": (PHOTOS, CAPTIONS, WORDS, NUM_REGIONS),
    "region_attention": (PHOTOS, CAPTIONS, NUM_REGIONS, WORDS),
    "word_gates": (PHOTOS, CAPTIONS, WORDS),
    "region_gates": (PHOTOS, CAPTIONS, NUM_REGIONS),
}
PAIR_OUTPUTS = tuple(_PAIR_OUTPUTS)  # all that a scorer can have, in the order of its graph


def caption_positions(extra_positions: int) -> Axis:
    """The positions of a caption's side: its words after what belongs to it as a whole."""
    if extra_positions == 0:
        return WORDS
    lengths = (extra_positions + length for length in (WORDS.least, WORDS.usual, WORDS.most))
    return Axis("positions", *lengths)


def graphs(extra_positions: int, outputs: tuple[str, ...]) -> tuple[GraphSpec, ...]:
    """The graphs of an engine, in the order of their names in GRAPH_NAMES.

    Args:
        extra_positions: of the scorer's sides (matching.models.system).
        outputs: what the scorer has of PAIR_OUTPUTS.
    """
    positions = caption_positions(extra_positions)
    image_side = TensorSpec(
        "image_side", "float32", (PHOTOS, extra_positions + NUM_REGIONS, "side_width")
    )
    caption_side = TensorSpec("caption_side", "float32", (CAPTIONS, positions, "side_width"))
    image_encoder = GraphSpec(
        "image_encoder",
        (TensorSpec("pixels", "float32", (PHOTOS, 3, IMAGE_SIZE, IMAGE_SIZE)),),
        (TensorSpec("photo_embedding", "float32", (PHOTOS, "embedding_width")), image_side),
    )
    text_encoder = GraphSpec(
        "text_encoder",
        (
            TensorSpec("piece_ids", "int64", (CAPTIONS, PIECES)),
            TensorSpec("word_pieces", "float32", (CAPTIONS, WORDS, PIECES)),
        ),
        (TensorSpec("caption_embedding", "float32", (CAPTIONS, "embedding_width")), caption_side),
    )
    pair_scorer = GraphSpec(
        "pair_scorer",
        (image_side, caption_side, TensorSpec("word_mask", "bool", (CAPTIONS, positions))),
        tuple(
            TensorSpec(name, "float32", axes)
            for name, axes in _PAIR_OUTPUTS.items()
            if name in outputs
        ),
    )
    return image_encoder, text_encoder, pair_scorer


GRAPH_NAMES = ("image_encoder", "text_encoder", "pair_scorer")
