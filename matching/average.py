"""python -m matching.average: the weights between two checkpoints, one trained on from the other.

Between the two often lies a model that is better than both, all the more for photos unlike those of
the training (Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022, and "Model
soups", ICML 2022). With a stage 1 its tuned backbones are averaged, too. A scorer stays behind the
backbones and the stage 1 of the second one; python -m matching.pair chooses its final score anew.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from matching.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from matching.command import run_command
from matching.files import read_json
from matching.models.backbones import (
    Backbones,
    backbones_beside,
    save_backbones,
    tuned_parameters,
)
from matching.systems import can_be

_OF_THE_FILES = ("format_version", "system", "model", "weights_sha256", "rankings")


def average(before: Path, after: Path, share: float, out: Path) -> None:
    """Writes out/SYSTEM, `share` of the way from `before` to `after`.

    For a stage 1 also out/backbones.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"--share is {share}: it must be from 0 (before) to 1 (after)")
    one, other = ends = [load_checkpoint(folder) for folder in (before, after)]
    if (one.system, one.config["model"]) != (other.system, other.config["model"]):
        raise ValueError(
            f"{before} and {after} are different models: their weights have no average; give a "
            "checkpoint and one that was trained on from it",
        )
    details = _record(other.config)
    details["averaged"] = {"share": share, "weights_sha256": [end.sha256 for end in ends]}
    if can_be(one.model, "stage1"):
        details["backbone_sha256"] = _average_backbones(ends, share, out / "backbones")
    weights = _between(one.model.state_dict(), other.model.state_dict(), share)
    settings, words = one.model.config, other.vocabulary
    save_checkpoint(out / one.system, one.system, weights, settings, details, words)


def _average_backbones(ends: list[Checkpoint], share: float, out: Path) -> str:
    """Of two stages 1; returns the sha256 of what is read back."""
    backbones = [_backbones_of(end) for end in ends]
    beside = backbones_beside(ends[1].folder)
    details = {} if beside is None else _record(read_json(beside / "config.json"))
    details["averaged"] = {"share": share, "backbone_sha256": [b.sha256 for b in backbones]}
    tuned = [tuned_parameters(b.image, b.text) for b in backbones]
    save_backbones(out, _between(*tuned, share), details)
    return Backbones.load(out).sha256


def _record(config: dict[str, Any]) -> dict[str, Any]:
    """How the weights came about: of a config.json all but what describes the files beside it."""
    return {key: value for key, value in config.items() if key not in _OF_THE_FILES}


def _backbones_of(checkpoint: Checkpoint) -> Backbones:
    backbones = Backbones.load(backbones_beside(checkpoint.folder))
    if checkpoint.config["backbone_sha256"] != backbones.sha256:
        raise ValueError(f"{checkpoint.folder} was trained on other backbones than those beside it")
    return backbones


@torch.no_grad()
def _between(
    before: dict[str, Tensor], after: dict[str, Tensor], share: float
) -> dict[str, Tensor]:
    return {name: torch.lerp(before[name], after[name], share) for name in before}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.average", description=__doc__)
    parser.add_argument("before", type=Path, help="checkpoint")
    parser.add_argument("after", type=Path, help="the same model, trained on")
    parser.add_argument("--share", type=float, default=0.5, help="of the second one (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    arguments = parser.parse_args(argv)
    average(arguments.before, arguments.after, arguments.share, arguments.out)
    print(
        f"{arguments.out}: {arguments.share:g} of the way from {arguments.before} to "
        f"{arguments.after}",
    )
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
