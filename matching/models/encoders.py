"""The three graphs: what is trained, put together the way it is exported and run.

`stage1` is an embedder and `scorer` a pair scorer (matching.models.system), both reading captions
by MiniLM. One module may be both: it then runs once, and what it embeds leads its sides.
"""

from __future__ import annotations

from torch import Tensor, nn

from matching.models.image_backbone import ImageBackbone
from matching.models.scores import PairScores
from matching.models.system import System
from matching.models.text_backbone import LowerTextBackbone


class ImageEncoder(nn.Module):
    """pixels (B, 3, 256, 256), 0 to 255 -> embedding (B, E), image_side (B, X + R, S)."""

    def __init__(self, backbone: ImageBackbone, stage1: System, scorer: System) -> None:
        super().__init__()
        # The backbone comes first: engines with other systems then share its weight files.
        self.backbone, self.stage1, self.scorer = backbone, stage1, scorer
        self.shared = is_shared(stage1, scorer)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        regions = self.backbone(pixels)
        side = self.scorer.photo_side(regions)
        if self.shared:
            return side[:, 0, : self.stage1.embedding_width], side
        return self.stage1.embed_photos(regions), side


class TextEncoder(nn.Module):
    """piece_ids (B, L), word_pieces (B, N, L) -> embedding (B, E), caption_side (B, X + N, S)."""

    def __init__(self, backbone: LowerTextBackbone, stage1: System, scorer: System) -> None:
        super().__init__()
        self.backbone, self.stage1, self.scorer = backbone, stage1, scorer
        self.shared = is_shared(stage1, scorer)

    def forward(self, piece_ids: Tensor, word_pieces: Tensor) -> tuple[Tensor, Tensor]:
        captions = (self.backbone(piece_ids), piece_ids != 0, word_pieces)
        side, _ = self.scorer.caption_side(*captions)
        if self.shared:
            return side[:, 0, : self.stage1.embedding_width], side
        return self.stage1.embed_captions(*captions), side


class PairScorer(nn.Module):
    """image_side (P, X + R, S), caption_side (C, X + N, S), word_mask (C, X + N) -> PairScores.

    Only the parts that the scorer has become outputs of its graph.
    """

    def __init__(self, scorer: System) -> None:
        super().__init__()
        self.scorer = scorer

    def forward(self, image_side: Tensor, caption_side: Tensor, word_mask: Tensor) -> PairScores:
        return self.scorer(image_side, caption_side, word_mask)


def is_shared(stage1: System, scorer: System) -> bool:
    """Whether both stages are one module whose sides begin with its embeddings."""
    return stage1 is scorer and scorer.extra_positions > 0
