"""VSE-infinity (woodfrog/vse_infty): regions or grids, with BERT (master) or a BiGRU (bigru)."""

from __future__ import annotations

from matching.config import VseInfinityConfig
from matching.conversion.containers import Container
from matching.conversion.keys import (
    Converted,
    batch_norm,
    both,
    checked_vocabulary,
    fitted,
    gru,
    renamed,
    shape_of,
    source_of,
    word_reader,
)
from matching.models.bert import published_name
from matching.systems import make_system
from matching.vocabulary import Vocabulary

_REPOSITORY = "https://github.com/woodfrog/vse_infty"
# In the state dict, but its forward never reads the norm of the last layer.
_UNUSED_NORM = ("mlp.bns.1.*",)
# The grid models carry their CNN: its cells are the regions to give, made by that CNN.
_BACKBONE = ("backbone.*",)
# Of BERT's pre-training; position_ids is the constant 0, 1, 2 ...
_UNUSED_BERT = ("bert.pooler.*", "bert.embeddings.position_ids")


def _pooling(theirs: str, ours: str) -> dict[str, str]:
    names = gru(f"{theirs}.gru", ours, bidirectional=True)
    return names | {f"{theirs}.linear.weight": f"{ours}.score.weight"}


def _region_names() -> dict[str, str]:
    names = both("fc", "regions.linear") | both("mlp.layers.0", "regions.mlp.widen")
    names |= both("mlp.layers.1", "regions.mlp.narrow")
    return names | batch_norm("mlp.bns.0", "regions.mlp.norm") | _pooling("gpool", "region_pooling")


def _grid_names() -> dict[str, str]:
    names = both("image_encoder.fc", "regions.linear")
    return names | _pooling("image_encoder.gpool", "region_pooling")


def _bert_names(config: VseInfinityConfig) -> dict[str, str]:
    reader = make_system("vse_infinity", config).text
    names = {f"bert.{published_name(name)}": f"text.{name}" for name in reader.state_dict()}
    return names | both("linear", "words")


def convert(container: Container, vocabulary: Vocabulary | None) -> Converted:
    container.require("vse_infinity", "VSE-infinity")
    for option in ("no_imgnorm", "no_txtnorm"):
        container.require_option(option, False)
    image_part, text_part = container.part("image"), container.part("text")
    grid = "image_encoder.fc.weight" in image_part
    bert = any(name.startswith("bert.") for name in text_part)
    prefix = "image_encoder." if grid else ""
    dimension, channels = shape_of(container, "image", f"{prefix}fc.weight", 2)
    hidden = dimension if grid else shape_of(container, "image", "mlp.layers.0.weight", 2)[0]
    settings = {
        "dimension": dimension,
        "hidden": hidden,
        "region_encoder": "linear" if grid else "linear_mlp",
        "region_channels": channels,
    }
    if bert:
        vocabulary = None  # BERT's own WordPieces
        config = VseInfinityConfig(**settings, word_encoder="bert")
        text_names = _bert_names(config) | _pooling("gpool", "word_pooling")
    else:
        vocabulary = checked_vocabulary(container, vocabulary, with_mask=True)
        config = VseInfinityConfig(
            **settings,
            dropout=0.0,
            word_encoder="bigru",
            vocabulary_size=len(vocabulary),
            word_dimension=shape_of(container, "text", "embed.weight", 2)[1],
        )
        text_names = word_reader(text_part) | _pooling("gpool", "word_pooling")
    region_names = _grid_names() if grid else _region_names()
    unused = _BACKBONE if grid else _UNUSED_NORM
    image, image_left = renamed(container, "image", region_names, unused)
    text, text_left = renamed(container, "text", text_names, _UNUSED_BERT if bert else ())
    weights = fitted(container, "vse_infinity", config, image | text)
    source = source_of(container, _REPOSITORY)
    if grid:
        source["regions"] = "cells of the authors' backbone, which is not part of this checkpoint"
    left_out = (*image_left, *text_left)
    return Converted("vse_infinity", config, weights, vocabulary, left_out, source)
