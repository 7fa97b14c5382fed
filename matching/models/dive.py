"""DivE (Kim et al., CVPR 2023): a set of embeddings a photo and a caption, compared as sets."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from matching.config import DiveConfig, one_of
from matching.models.recurrent import reversed_positions
from matching.models.set_prediction import PredictedSet, SetPrediction
from matching.models.set_similarity import (
    chamfer,
    mean_probability,
    nearest_members,
    smooth_chamfer,
)
from matching.models.system import System

SIMILARITIES = ("smooth_chamfer", "chamfer", "max", "mean_probability")


class Dive(System):
    """An embedding is the set, its K members of unit length in a row: (B, K * D)."""

    def __init__(self, config: DiveConfig) -> None:
        super().__init__(config)
        one_of("similarity", config.similarity, SIMILARITIES)
        self.embedding_width = config.slots * config.dimension
        self.region_set = SetPrediction(config, config.dimension, positions=False)
        # The authors feed the slots with the embeddings of words, not with the states of the GRU.
        self.recurrent = config.word_encoder in ("bigru", "gru")
        context_width = config.word_dimension if self.recurrent else config.dimension
        self.word_set = SetPrediction(config, context_width, positions=True)
        self.dropout = nn.Dropout(config.dropout)
        # Inverse temperature of the contrastive loss; not needed to search.
        self.log_scale = nn.Parameter(torch.tensor(math.log(20.0)))
        if config.similarity == "mean_probability":
            self.scale = nn.Parameter(torch.tensor(1.0))  # the authors' first values
            self.shift = nn.Parameter(torch.tensor(0.0))

    def photo_set(self, regions: Tensor, region_mask: Tensor | None = None) -> PredictedSet:
        """regions (B, R, C) -> a set each; its attention is over the R regions."""
        local = self.regions(regions)
        return self.region_set(local, _masked_maximum(local, region_mask), region_mask)

    def caption_set(self, *captions: Tensor) -> PredictedSet:
        """Captions as the word encoder takes them -> a set each; attention over the N words."""
        if self.recurrent:
            return self._caption_set_of_words(*captions)
        words, mask = self.encode_words(*captions)
        return self.word_set(words, _masked_maximum(words, mask), mask)

    def embed_photos(self, regions: Tensor, region_mask: Tensor | None = None) -> Tensor:
        """regions (B, R, C) -> (B, K * D)."""
        return self.photo_set(regions, region_mask).embeddings.flatten(1)

    def embed_captions(self, *captions: Tensor) -> Tensor:
        """Captions as the word encoder takes them -> (B, K * D)."""
        return self.caption_set(*captions).embeddings.flatten(1)

    def similarity(self, photos: Tensor, captions: Tensor) -> Tensor:
        """(..., P, K * D), (..., C, K * D) -> (..., P, C)."""
        members = (self.config.slots, self.config.dimension)
        photos, captions = photos.unflatten(-1, members), captions.unflatten(-1, members)
        kind = self.config.similarity
        if kind == "smooth_chamfer":
            return smooth_chamfer(photos, captions, self.config.alpha)
        if kind == "chamfer":
            return chamfer(photos, captions)
        if kind == "max":
            return nearest_members(photos, captions)
        return mean_probability(photos, captions, self.scale, self.shift)

    def similarity_settings(self) -> dict[str, Any]:
        """What matching.similarity.Similarity is made of, for an engine."""
        config = self.config
        settings = {"kind": config.similarity, "slots": config.slots, "alpha": config.alpha}
        if config.similarity == "mean_probability":
            settings |= {"scale": self.scale.item(), "shift": self.shift.item()}
        return settings

    def _caption_set_of_words(self, word_ids: Tensor) -> PredictedSet:
        """word_ids (B, N), 0 where there is none; the same dropout for the slots and the GRU."""
        mask = word_ids != 0
        words = self.dropout(self.text.embed(word_ids))  # (B, N, word_dimension)
        global_feature = _final_state(self.text.forward_gru, words, mask)
        if self.text.backward_gru is not None:
            backwards = reversed_positions(mask)[..., None].expand_as(words)
            first = _final_state(self.text.backward_gru, words.gather(1, backwards), mask)
            global_feature = (global_feature + first) / 2
        return self.word_set(words, self.dropout(global_feature), mask)


def _final_state(gru: nn.GRU, words: Tensor, mask: Tensor) -> Tensor:
    """The state after the last word of each caption: words (B, N, W), mask (B, N) -> (B, D)."""
    states, _ = gru(words)
    last = (mask.sum(1) - 1).clamp(min=0)
    return states.gather(1, last[:, None, None].expand(-1, 1, states.shape[-1])).squeeze(1)


def _masked_maximum(features: Tensor, mask: Tensor | None) -> Tensor:
    """features (B, N, D), mask (B, N) -> (B, D)."""
    if mask is not None:
        features = features.masked_fill(~mask[..., None], -1e9)
    return features.amax(1)
