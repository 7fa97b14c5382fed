"""From captions to words in a system's own space: MiniLM, a vocabulary with a GRU, or BERT."""

from __future__ import annotations

from torch import nn

from matching.config import EncoderConfig, one_of
from matching.models import bert
from matching.models.projection import Projection
from matching.models.recurrent import RecurrentReader
from matching.models.text_backbone import WIDTH, UpperTextBackbone


def make_word_encoder(config: EncoderConfig) -> tuple[nn.Module, nn.Module]:
    """A reader of captions (inputs -> words, mask) and the projection of its words."""
    kind = one_of("word_encoder", config.word_encoder, ("minilm", "bigru", "gru", "bert"))
    if kind == "minilm":
        projection = Projection((WIDTH,), config.hidden, config.dimension, config.dropout)
        return UpperTextBackbone(), projection
    if kind == "bert":
        return bert.Bert(dropout=config.dropout), nn.Linear(bert.WIDTH, config.dimension)
    reader = RecurrentReader(
        config.vocabulary_size,
        config.word_dimension,
        config.dimension,
        bidirectional=kind == "bigru",
    )
    return reader, nn.Identity()  # its states are in the system's space already
