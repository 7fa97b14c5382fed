"""python -m matching.train vse_infinity | camp: trains a system on prepared features.

Start it again after a kill and it goes on where it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from matching.allocation import keep_freed_memory
from matching.batches import TrainingSet
from matching.checkpoint import Checkpoint, load_checkpoint, record_metrics
from matching.command import run_command
from matching.config import (
    CampConfig,
    CampTraining,
    VseInfinityConfig,
    VseInfinityTraining,
    add_flags,
    settings_from_flags,
)
from matching.encode_features import embed_photos
from matching.features import Features
from matching.files import write_array
from matching.train_camp import CampRecipe, finish
from matching.train_vse_infinity import VseInfinityRecipe
from matching.training import Schedule, Trainer

_KINDS = {
    "vse_infinity": (VseInfinityConfig, VseInfinityTraining),
    "camp": (CampConfig, CampTraining),
}


def train(
    system: str,
    model_config: Any,
    config: Any,
    data: TrainingSet,
    validation: Features,
    out: Path,
    run_folder: Path,
    stage1: Checkpoint | None = None,
) -> list[dict[str, Any]]:
    """Trains to the end; the best checkpoint by `val` is in `out`. Returns the validations."""
    details: dict[str, Any] = {
        "training": dataclasses.asdict(config),
        "train_photos": len(data),
        "backbone_sha256": data.backbone_sha256,
    }
    if stage1 is None:
        recipe = VseInfinityRecipe(model_config, config, data, validation, out, details)
    else:
        details["stage1_sha256"] = stage1.sha256
        embeddings = _photo_embeddings(stage1, data, run_folder)
        recipe = CampRecipe(
            model_config,
            config,
            data,
            stage1.model,
            embeddings,
            validation,
            out,
            details,
        )
    names = [field.name for field in dataclasses.fields(Schedule)]
    schedule = Schedule(**{name: getattr(config, name) for name in names})
    settings = {"system": system, "model": dataclasses.asdict(model_config), **details}
    history = Trainer(recipe, schedule, run_folder, settings).run()
    if stage1 is not None:
        finish(out, stage1.model, validation)
    else:
        best = max(history, key=lambda validation: validation["selection"])
        record_metrics(out, "val", {"stage1": best["stage1"]})
    return history


def _photo_embeddings(stage1: Checkpoint, data: TrainingSet, run_folder: Path) -> np.ndarray:
    """Stage 1 of all training photos, which CAMP's groups are drawn by; kept in the run folder."""
    path = run_folder / f"stage1-{stage1.sha256[:12]}.npy"
    if path.exists():
        return np.load(path)
    logging.getLogger(__name__).info("embedding %d training photos", len(data))
    embeddings = data.embed_photos(partial(embed_photos, stage1.model))
    write_array(path, embeddings)
    return embeddings


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.train", description=__doc__)
    systems = parser.add_subparsers(dest="system", required=True)
    for system, kinds in _KINDS.items():
        sub = systems.add_parser(system, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        sub.add_argument(
            "--features",
            type=Path,
            nargs="+",
            required=True,
            help="feature folders to train on; the first one's `val` selects",
        )
        sub.add_argument("--out", type=Path, default=Path("checkpoints/default") / system)
        sub.add_argument(
            "--run",
            type=Path,
            default=Path("runs") / system,
            help="folder of the state that a killed run goes on from",
        )
        if system == "camp":
            sub.add_argument(
                "--stage1", type=Path, default=Path("checkpoints/default/vse_infinity")
            )
        sub.add_argument("--json", action="store_true", help="print one JSON document")
        for kind in kinds:
            add_flags(sub, kind)
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    data = TrainingSet(arguments.features)
    stage1 = (
        load_checkpoint(arguments.stage1, "vse_infinity") if arguments.system == "camp" else None
    )
    model_config, config = (settings_from_flags(k, arguments) for k in _KINDS[arguments.system])
    validation = Features(arguments.features[0])
    history = train(
        arguments.system,
        model_config,
        config,
        data,
        validation,
        arguments.out,
        arguments.run,
        stage1,
    )
    best = max(history, key=lambda v: v["selection"])
    if arguments.json:
        print(json.dumps({"out": str(arguments.out), "best": best, "history": history}))
    else:
        print(f"{arguments.out}: best of {len(history)} epochs was {best['epoch']}: {best}")
    return 0


if __name__ == "__main__":
    keep_freed_memory()
    sys.exit(run_command(main))
