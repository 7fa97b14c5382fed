"""python -m matching.views: a larger model from a trained one, by reading a photo more than once.

Weights stay as they are, and where they are; the regions of all views are averaged. The final score
and its probability behind the new features are chosen by python -m matching.pair afterwards.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from matching.command import run_command
from matching.files import read_json, write_json
from matching.models.backbones import Backbones, save_views
from matching.models.image_views import View


def make_views(source: Path, out: Path, views: tuple[View, ...]) -> list[str]:
    """Writes `out` with the checkpoints of `source`; returns their names."""
    found = Backbones.load(source / "backbones").sha256
    save_views(out / "backbones", os.path.relpath(source / "backbones", out / "backbones"), views)
    sha256 = Backbones.load(out / "backbones").sha256
    names = []
    for checkpoint in sorted(path.parent for path in source.glob("*/model.safetensors*")):
        if checkpoint.name in names:
            continue
        config = read_json(checkpoint / "config.json")
        if config.get("backbone_sha256") != found:
            raise ValueError(f"{checkpoint} was trained on other backbones than {source}/backbones")
        kept = {key: value for key, value in config.items() if key != "rankings"}
        trained_on = {"backbone_sha256": sha256, "trained_on_backbone_sha256": found}
        trained_on["weights_in"] = os.path.relpath(checkpoint, out / checkpoint.name)
        write_json(out / checkpoint.name / "config.json", {**kept, **trained_on})
        names.append(checkpoint.name)
    return names


def _view(text: str) -> View:
    try:
        return View.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.views", description=__doc__)
    parser.add_argument("views", nargs="+", type=_view, help="such as 256 256m 384 384m")
    parser.add_argument("--from", type=Path, required=True, dest="source", help="checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="folder for the larger model")
    arguments = parser.parse_args(argv)
    names = make_views(arguments.source, arguments.out, tuple(arguments.views))
    views = ", ".join(map(str, arguments.views))
    print(f"{arguments.out}: {', '.join(names)} behind backbones of views {views}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
