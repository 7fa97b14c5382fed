"""VSE-infinity (Chen et al., CVPR 2021): one embedding a photo and one a caption, pooled by GPO."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from matching.config import VseInfinityConfig
from matching.image import NUM_REGIONS
from matching.models.gpo import GeneralizedPooling
from matching.models.projection import Projection, l2_normalised
from matching.models.text_backbone import WIDTH, UpperTextBackbone
from matching.text import MAX_WORDS

REGION_TAPS = (1280, 120)  # channels of matching.models.image_backbone, by tap


class VseInfinity(nn.Module):
    """Cosine similarity of the two embeddings is the score of stage 1."""

    def __init__(self, config: VseInfinityConfig) -> None:
        super().__init__()
        dropout = config.dropout
        self.regions = Projection(REGION_TAPS, config.hidden, config.dimension, dropout)
        self.text = UpperTextBackbone()
        self.words = Projection((WIDTH,), config.hidden, config.dimension, dropout)
        self.region_pooling = GeneralizedPooling(NUM_REGIONS)
        self.word_pooling = GeneralizedPooling(MAX_WORDS)
        # Inverse temperature of the contrastive loss; not needed to search.
        self.log_scale = nn.Parameter(torch.tensor(math.log(20.0)))

    def embed_photos(self, regions: Tensor) -> Tensor:
        """regions (B, R, C) -> (B, D), unit length."""
        return l2_normalised(self.region_pooling(self.regions(regions)))

    def embed_captions(self, hidden: Tensor, piece_mask: Tensor, word_pieces: Tensor) -> Tensor:
        """hidden (B, L, W), piece_mask (B, L), word_pieces (B, N, L) -> (B, D), unit length."""
        words = self.words(self.text(hidden, piece_mask, word_pieces))
        return l2_normalised(self.word_pooling(words, word_pieces.sum(-1) > 0))
