"""The three graphs: what is trained, put together the way it is exported and run.

A side (matching.models.camp.Side) travels as one tensor, its parts joined along the last axis.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from matching.models.camp import Camp, PairScores, Side
from matching.models.image_backbone import ImageBackbone
from matching.models.text_backbone import LowerTextBackbone
from matching.models.vse_infinity import VseInfinity


def join_side(side: Side) -> Tensor:
    return torch.cat(side, dim=-1)


def split_side(camp: Camp, joined: Tensor) -> Side:
    widths = (camp.dimension, camp.key_dimension, camp.dimension, camp.dimension)
    return Side(*joined.split(widths, dim=-1))


class ImageEncoder(nn.Module):
    """pixels (B, 3, 256, 256), 0 to 255 -> embedding (B, D), image_side (B, R, S)."""

    def __init__(self, backbone: ImageBackbone, stage1: VseInfinity, camp: Camp) -> None:
        super().__init__()
        self.backbone, self.stage1, self.camp = backbone, stage1, camp

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        regions = self.backbone(pixels)
        side = self.camp.photo_side(self.camp.region_features(regions))
        return self.stage1.embed_photos(regions), join_side(side)


class TextEncoder(nn.Module):
    """piece_ids (B, L), word_pieces (B, N, L) -> embedding (B, D), caption_side (B, N, S)."""

    def __init__(self, backbone: LowerTextBackbone, stage1: VseInfinity, camp: Camp) -> None:
        super().__init__()
        self.backbone, self.stage1, self.camp = backbone, stage1, camp

    def forward(self, piece_ids: Tensor, word_pieces: Tensor) -> tuple[Tensor, Tensor]:
        hidden, piece_mask = self.backbone(piece_ids), piece_ids != 0
        words = self.camp.word_features(hidden, piece_mask, word_pieces)
        embedding = self.stage1.embed_captions(hidden, piece_mask, word_pieces)
        return embedding, join_side(self.camp.caption_side(words))


class PairScorer(nn.Module):
    """image_side (P, R, S), caption_side (C, N, S), word_mask (C, N) -> the parts of PairScores."""

    def __init__(self, camp: Camp) -> None:
        super().__init__()
        self.camp = camp

    def forward(self, image_side: Tensor, caption_side: Tensor, word_mask: Tensor) -> PairScores:
        photos, captions = (split_side(self.camp, side) for side in (image_side, caption_side))
        return self.camp(photos, captions, word_mask)
