"""SCAN (kuanghuei/SCAN) and VSE++ (fartashf/vsepp): a linear layer, an embedding and a GRU.

Their files have the same names; which of the two a file is, the command says.
"""

from __future__ import annotations

from matching.config import ScanConfig, VseInfinityConfig
from matching.conversion.containers import Container
from matching.conversion.keys import (
    Converted,
    both,
    checked_vocabulary,
    fitted,
    is_bidirectional,
    renamed,
    shape_of,
    source_of,
    word_reader,
)
from matching.vocabulary import Vocabulary

_SCAN = "https://github.com/kuanghuei/SCAN"
_VSEPP = "https://github.com/fartashf/vsepp"
_CNN = ("cnn.*",)  # VSE++ saves the CNN beside its head
_AGGREGATES = {"LogSumExp": "lse", "Mean": "mean"}
_LAMBDAS = {"t2i": (9.0, 6.0), "i2t": (4.0, 5.0)}  # softmax, LSE: the README's, for Flickr30k


def convert_scan(container: Container, vocabulary: Vocabulary | None) -> Converted:
    container.require("scan", "SCAN or VSE++")
    container.require_option("raw_feature_norm", "clipped_l2norm")
    for option in ("no_imgnorm", "no_txtnorm"):
        container.require_option(option, False)
    vocabulary = checked_vocabulary(container, vocabulary)
    options = container.options
    direction = options.get("cross_attn", "t2i")
    aggregate = options.get("agg_func", "LogSumExp")
    if direction not in _LAMBDAS or aggregate not in _AGGREGATES:
        raise ValueError(
            f"{container.path} was trained with cross_attn = {direction!r}, agg_func = "
            f"{aggregate!r}; t2i or i2t with LogSumExp or Mean can be converted",
        )
    softmax, lse = _LAMBDAS[direction]
    config = ScanConfig(
        **_sizes(container, vocabulary),
        direction=direction,
        aggregate=_AGGREGATES[aggregate],
        attention_temperature=float(options.get("lambda_softmax", softmax)),
        aggregate_temperature=float(options.get("lambda_lse", lse)),
    )
    image, _ = renamed(container, "image", both("fc", "regions.linear"))
    text, _ = renamed(container, "text", word_reader(container.part("text")))
    weights = fitted(container, "scan", config, image | text)
    return Converted("scan", config, weights, vocabulary, source=source_of(container, _SCAN))


def convert_vsepp(container: Container, vocabulary: Vocabulary | None) -> Converted:
    """VSE++ is VSE-infinity with other poolings; its photo is one region, the CNN's output."""
    container.require("vsepp", "SCAN or VSE++")
    container.require_option("use_abs", False)
    container.require_option("measure", "cosine")
    vocabulary = checked_vocabulary(container, vocabulary)
    if is_bidirectional(container.part("text")):
        raise ValueError(
            f"{container.path} reads captions in both directions, VSE++ in one: it may be SCAN's",
        )
    config = VseInfinityConfig(
        **_sizes(container, vocabulary), region_pooling="mean", word_pooling="last"
    )
    image, left_out = renamed(container, "image", both("fc", "regions.linear"), _CNN)
    text, _ = renamed(container, "text", word_reader(container.part("text")))
    weights = fitted(container, "vse_infinity", config, image | text)
    source = source_of(container, _VSEPP)
    if left_out:
        source["regions"] = "output of the authors' CNN, l2-normalised, as one region a photo"
    return Converted("vse_infinity", config, weights, vocabulary, tuple(left_out), source)


def _sizes(container: Container, vocabulary: Vocabulary) -> dict:
    dimension, channels = shape_of(container, "image", "fc.weight", 2)
    return {
        "dimension": dimension,
        "hidden": dimension,
        "dropout": 0.0,
        "region_encoder": "linear",
        "region_channels": channels,
        "word_encoder": "bigru" if is_bidirectional(container.part("text")) else "gru",
        "vocabulary_size": len(vocabulary),
        "word_dimension": shape_of(container, "text", "embed.weight", 2)[1],
    }
