"""CAMP's release (ZihaoWang-CV/CAMP_iccv19): the scorer `gate_fusion_new`, as it was published."""

from __future__ import annotations

from matching.config import CampConfig
from matching.conversion.containers import Container
from matching.conversion.keys import (
    Converted,
    both,
    checked_vocabulary,
    fitted,
    renamed,
    shape_of,
    source_of,
    word_reader,
)
from matching.vocabulary import Vocabulary

_REPOSITORY = "https://github.com/ZihaoWang-CV/CAMP_iccv19"


def _scorer_names() -> dict[str, str]:
    names = {
        "img_key_fc.weight": "photo.key.weight",
        "txt_key_fc.weight": "caption.key.weight",
        "img_query_fc.weight": "photo.query.weight",
        "txt_query_fc.weight": "caption.query.weight",
        # Named there by what messages are made of, here by who receives them: regions receive
        # messages made of words.
        "weighted_txt_key_fc.weight": "photo.message_key.weight",
        "weighted_txt_query_fc.weight": "photo.message_query.weight",
        "weighted_img_key_fc.weight": "caption.message_key.weight",
        "weighted_img_query_fc.weight": "caption.message_query.weight",
        "fc_1.0.weight": "photo.fusion.weight",
        "fc_2.0.weight": "caption.fusion.weight",
    }
    names |= both("fc_out.0", "score.0") | both("fc_out.3", "score.2")
    for number, side in ((1, "photo"), (2, "caption")):
        for layer in (0, 2):
            names |= both(f"final_reduce_{number}.linear.{layer}", f"{side}.aggregation.{layer}")
    return names


def convert(container: Container, vocabulary: Vocabulary | None) -> Converted:
    container.require("camp", "CAMP gate_fusion_new")
    for option in ("no_imgnorm", "no_txtnorm"):  # all released configurations
        container.require_option(option, True)
    vocabulary = checked_vocabulary(container, vocabulary)
    dimension, channels = shape_of(container, "image", "fc.weight", 2)
    config = CampConfig(
        dimension=dimension,
        hidden=dimension,
        dropout=0.0,
        region_encoder="linear",
        region_channels=channels,
        word_encoder="bigru",
        vocabulary_size=len(vocabulary),
        word_dimension=shape_of(container, "text", "embed.weight", 2)[1],
        key_dimension=shape_of(container, "scorer", "img_key_fc.weight", 2)[0],
        messages="refined",
        gate="scalar",
        fusion="concat",
        residual=True,
        aggregation="mlp",
        score="mlp_concat",
        normalise_features=False,
    )
    image, _ = renamed(container, "image", both("fc", "regions.linear"))
    text, _ = renamed(container, "text", word_reader(container.part("text")))
    scorer, _ = renamed(container, "scorer", _scorer_names())
    weights = fitted(container, "camp", config, image | text | scorer)
    return Converted("camp", config, weights, vocabulary, source=source_of(container, _REPOSITORY))
