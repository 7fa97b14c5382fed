"""VSE-infinity (Chen et al., CVPR 2021): one embedding a photo and one a caption, pooled by GPO.

With other poolings it is VSE++ (Faghri et al., BMVC 2018): the mean of regions and the last state
of a GRU, or what the supplement's table 1 compares.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from matching.config import VseInfinityConfig
from matching.image import NUM_REGIONS
from matching.models.pooling import make_pooling
from matching.models.projection import l2_normalised
from matching.models.system import System
from matching.text import MAX_WORDS

_LARGEST_FIELD_SET = 256  # cells of a 16 x 16 grid; bottom-up regions are 10 to 100
_LARGEST_FIELD_CAPTION = 64  # words or pieces; the authors' captions end at 50 or so


class VseInfinity(System):
    """Cosine similarity of the two embeddings is the score of stage 1."""

    def __init__(self, config: VseInfinityConfig) -> None:
        super().__init__(config)
        self.embedding_width = config.dimension
        regions = NUM_REGIONS if config.region_encoder == "taps" else _LARGEST_FIELD_SET
        words = MAX_WORDS if config.word_encoder == "minilm" else _LARGEST_FIELD_CAPTION
        self.region_pooling = make_pooling(config.region_pooling, config, regions)
        self.word_pooling = make_pooling(config.word_pooling, config, words)
        # Inverse temperature of the contrastive loss; not needed to search.
        self.log_scale = nn.Parameter(torch.tensor(math.log(20.0)))

    def embed_photos(self, regions: Tensor, region_mask: Tensor | None = None) -> Tensor:
        """regions (B, R, C), region_mask (B, R) bool -> (B, D), unit length."""
        return l2_normalised(self.region_pooling(self.regions(regions), region_mask))

    def embed_captions(self, *captions: Tensor) -> Tensor:
        """Captions as the word encoder takes them -> (B, D), unit length."""
        return l2_normalised(self.word_pooling(*self.encode_words(*captions)))

    @staticmethod
    def similarity(photos: Tensor, captions: Tensor) -> Tensor:
        """(..., P, D), (..., C, D) -> (..., P, C): cosines."""
        return photos @ captions.transpose(-1, -2)

    def freeze_pooling(self) -> None:
        """Makes constants of what depends on the sizes of sets alone, for export."""
        self.region_pooling.freeze()
        self.word_pooling.freeze()
