"""VSE-infinity (Chen et al., CVPR 2021): one embedding a photo and one a caption, pooled by GPO."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from matching.config import VseInfinityConfig
from matching.image import NUM_REGIONS
from matching.models.gpo import GeneralizedPooling
from matching.models.projection import l2_normalised
from matching.models.system import System
from matching.text import MAX_WORDS


class VseInfinity(System):
    """Cosine similarity of the two embeddings is the score of stage 1."""

    def __init__(self, config: VseInfinityConfig) -> None:
        super().__init__(config)
        self.embedding_width = config.dimension
        self.region_pooling = GeneralizedPooling(NUM_REGIONS)
        self.word_pooling = GeneralizedPooling(MAX_WORDS)
        # Inverse temperature of the contrastive loss; not needed to search.
        self.log_scale = nn.Parameter(torch.tensor(math.log(20.0)))

    def embed_photos(self, regions: Tensor, region_mask: Tensor | None = None) -> Tensor:
        """regions (B, R, C) -> (B, D), unit length."""
        return l2_normalised(self.region_pooling(self.regions(regions), region_mask))

    def embed_captions(self, *captions: Tensor) -> Tensor:
        """Captions as the word encoder takes them -> (B, D), unit length."""
        return l2_normalised(self.word_pooling(*self.encode_words(*captions)))

    @staticmethod
    def similarity(photos: Tensor, captions: Tensor) -> Tensor:
        """(..., P, D), (..., C, D) -> (..., P, C): cosines."""
        return photos @ captions.transpose(-1, -2)
