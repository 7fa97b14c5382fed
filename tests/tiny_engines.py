"""Engines of small systems with random weights behind small backbones: quick to export and run."""

from pathlib import Path
from unittest import mock

import torch
from torch import Tensor, nn

from export import parity
from export.build_onnx import build_engine
from matching.checkpoint import Checkpoint, load_checkpoint, record_ranking, save_checkpoint
from matching.image import NUM_REGIONS
from matching.models import backbones
from matching.models.backbones import backbone_sha256
from matching.ranking import Ranking
from matching.systems import SYSTEMS, make_system

SETTINGS = {
    "dive": {"dimension": 16, "slots": 2, "heads": 2, "head_dimension": 8, "feed_forward": 16},
    "mmca": {"dimension": 16, "heads": 2, "feed_forward": 16, "filters": 8, "alpha": 1.0},
    "scan": {"dimension": 16, "direction": "i2t"},
}


class TinyImageBackbone(nn.Module):
    """Colours of 36 cells, as wide as the features of the real one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.widen = nn.Linear(3, 1400).requires_grad_(False)

    def forward(self, pixels: Tensor) -> Tensor:
        size = round(NUM_REGIONS**0.5)
        cells = nn.functional.avg_pool2d(pixels[..., :252, :252] / 128 - 1, 252 // size)
        return torch.tanh(self.widen(cells.flatten(2).transpose(1, 2)))


class TinyTextBackbone(nn.Module):
    """An embedding of pieces, some of which share one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(997, 384).requires_grad_(False)

    def forward(self, piece_ids: Tensor) -> Tensor:
        return self.words(piece_ids % 997)


def tiny_backbones() -> mock._patch:
    """Puts the small backbones in the place of the real ones."""
    tiny = {"ImageBackbone": TinyImageBackbone, "LowerTextBackbone": TinyTextBackbone}
    return mock.patch.multiple(backbones, **tiny)


def tiny_backbone_sha256() -> str:
    return backbone_sha256(TinyImageBackbone(), TinyTextBackbone())


def tiny_checkpoint(folder: Path, system: str, backbone: str, **settings: object) -> Checkpoint:
    torch.manual_seed(list(SETTINGS).index(system))
    config = SYSTEMS[system][1](hidden=16, **{**SETTINGS[system], **settings})
    weights = make_system(system, config).state_dict()
    save_checkpoint(folder, system, weights, config, {"backbone_sha256": backbone})
    return load_checkpoint(folder)


def build_tiny_engines(folder: Path) -> Path:
    """FOLDER/checkpoints/{dive,mmca,scan} and FOLDER/engines/{mmca,dive-scan}.

    MMCA is both of its stages and has no gates; SCAN (i2t) has the attention of regions alone.
    """
    backbone = tiny_backbone_sha256()
    checkpoints = {
        system: tiny_checkpoint(folder / "checkpoints" / system, system, backbone)
        for system in SETTINGS
    }
    # The default engine is tried at more sizes.
    with tiny_backbones(), mock.patch.object(parity, "SIZES", ((1, 1), (2, 3))):
        for name, stage1, scorer in (("mmca", "mmca", "mmca"), ("dive-scan", "dive", "scan")):
            record_ranking(checkpoints[scorer].folder, checkpoints[stage1], Ranking(2.0, 1.0, 0.5))
            stages = (checkpoints[stage1].folder, checkpoints[scorer].folder)
            build_engine(*stages, folder / "engines" / name)
    return folder
