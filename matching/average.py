"""python -m matching.average: the weights between two stages 1 and their backbones.

For a stage 1 before and after tuning: between the two lies one that knows the training captions
about as well as the second and the rest of the world about as well as the first (Wortsman et al.,
"Robust fine-tuning of zero-shot models", CVPR 2022).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor

from matching.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from matching.command import run_command
from matching.models.backbones import (
    Backbones,
    backbones_beside,
    save_backbones,
    tuned_parameters,
)


def average(before: Path, after: Path, share: float, out: Path) -> None:
    """Writes out/backbones and out/vse_infinity, `share` of the way from `before` to `after`."""
    if not 0 <= share <= 1:
        raise ValueError(f"--share is {share}: it must be from 0 (before) to 1 (after)")
    ends = [load_checkpoint(folder, "stage1") for folder in (before, after)]
    one, other = ends
    if (one.system, one.config["model"]) != (other.system, other.config["model"]):
        raise ValueError(
            f"{before} and {after} are different models: their weights have no average; give a "
            "stage 1 and one that was tuned from it",
        )
    backbones = [_backbones_of(end) for end in ends]
    origin = {
        "share": share,
        "stage1_sha256": [end.sha256 for end in ends],
        "backbone_sha256": [b.sha256 for b in backbones],
    }
    tuned = [tuned_parameters(b.image, b.text) for b in backbones]
    save_backbones(out / "backbones", _between(*tuned, share), {"averaged": origin})
    sha256 = Backbones.load(out / "backbones").sha256
    weights = _between(one.model.state_dict(), other.model.state_dict(), share)
    details = {"averaged": origin, "backbone_sha256": sha256}
    save_checkpoint(out / one.system, one.system, weights, one.model.config, details)


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
    parser.add_argument("before", type=Path, help="checkpoint of a stage 1")
    parser.add_argument("after", type=Path, help="the same, tuned further")
    parser.add_argument("--share", type=float, default=0.5, help="of the second one (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="folder for both parts")
    arguments = parser.parse_args(argv)
    average(arguments.before, arguments.after, arguments.share, arguments.out)
    print(
        f"{arguments.out}: {arguments.share:g} of the way from {arguments.before} to "
        f"{arguments.after}",
    )
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
