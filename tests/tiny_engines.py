"""Engines of small systems with random weights behind the real backbones."""

from pathlib import Path

import torch

from export import parity
from export.build_onnx import build_engine
from matching.checkpoint import Checkpoint, load_checkpoint, record_ranking, save_checkpoint
from matching.models.image_backbone import ImageBackbone
from matching.models.text_backbone import LowerTextBackbone
from matching.prepare import backbone_sha256
from matching.ranking import Ranking
from matching.systems import SYSTEMS, make_system

SETTINGS = {
    "dive": {"dimension": 16, "slots": 2, "heads": 2, "head_dimension": 8, "feed_forward": 16},
    "mmca": {"dimension": 16, "heads": 2, "feed_forward": 16, "filters": 8, "alpha": 1.0},
    "scan": {"dimension": 16, "direction": "i2t"},
}


def tiny_checkpoint(folder: Path, system: str, backbone: str, **settings: object) -> Checkpoint:
    torch.manual_seed(1)
    config = SYSTEMS[system][1](hidden=16, **{**SETTINGS[system], **settings})
    weights = make_system(system, config).state_dict()
    save_checkpoint(folder, system, weights, config, {"backbone_sha256": backbone})
    return load_checkpoint(folder)


def installed_backbone() -> str:
    return backbone_sha256(ImageBackbone().eval(), LowerTextBackbone().eval())


def build_tiny_engines(folder: Path) -> Path:
    """FOLDER/checkpoints/{dive,mmca,scan} and FOLDER/engines/{mmca,dive-scan}.

    MMCA is both of its stages and has no gates; SCAN (i2t) has the attention of regions alone.
    """
    backbone = installed_backbone()
    checkpoints = {
        system: tiny_checkpoint(folder / "checkpoints" / system, system, backbone)
        for system in SETTINGS
    }
    sizes, parity.SIZES = parity.SIZES, ((1, 1), (2, 3))  # the default engine is tried at more
    try:
        for name, stage1, scorer in (("mmca", "mmca", "mmca"), ("dive-scan", "dive", "scan")):
            record_ranking(checkpoints[scorer].folder, checkpoints[stage1], Ranking(2.0, 1.0, 0.5))
            stages = (checkpoints[stage1].folder, checkpoints[scorer].folder)
            build_engine(*stages, folder / "engines" / name)
    finally:
        parity.SIZES = sizes
    return folder
