"""What every experiment is given, and the training of a variation of a named configuration."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matching.checkpoint import Checkpoint, load_checkpoint
from matching.config import Training
from matching.datasets import Dataset, open_dataset
from matching.encode_features import Matcher, SplitMembers, encode_split, grid_scorer
from matching.encoded import Encoded, score_everything
from matching.metrics import evaluate_scores
from matching.presets import PRESETS
from matching.reproduce.report import cell, dumps
from matching.reranked import evaluate_stage1
from matching.systems import is_embedder
from matching.train import Job, train


@dataclass(frozen=True)
class Setting:
    """Where an experiment finds its data and keeps what it has done."""

    features: Path  # python -m matching.prepare of Flickr8k, unless the experiment says otherwise
    work: Path  # cells and checkpoints: a killed run goes on from here
    stage1: Path
    scorer: Path
    epochs: int | None = None  # fewer or more than the experiment's own
    photos: int | None = None  # of the test, likewise

    def dataset(self) -> Dataset:
        return open_dataset(self.features)


def train_variation(
    setting: Setting,
    preset: str,
    model: dict[str, Any],
    training: dict[str, Any],
) -> Checkpoint:
    """Trains a named configuration with some settings changed, or reads it if it is there."""
    base = PRESETS[preset]
    dataset = setting.dataset()
    model_config = dataclasses.replace(
        base.model_config(), **model, region_channels=dataset.region_shape[-1]
    )
    values = {**base.training, **training}
    if setting.epochs is not None:
        values["epochs"] = setting.epochs
    config = Training(**values)
    key = dumps([preset, dataclasses.asdict(model_config), dataclasses.asdict(config)])
    key += setting.dataset().backbone_sha256 + str(len(dataset.photos))
    name = f"{preset}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
    out, done = setting.work / "checkpoints" / name, setting.work / "checkpoints" / f"{name}.done"
    if not done.exists():
        job = Job(
            base.system,
            model_config,
            config,
            [dataset],
            out,
            setting.work / "runs" / name,
            load_checkpoint(setting.stage1, "stage1"),
            tune=False,  # a table compares systems on their own
        )
        train(job)
        done.touch()
    return load_checkpoint(out)


def encode_photos_of(
    setting: Setting,
    checkpoint: Checkpoint,
    photos: int,
    split: str = "test",
) -> Encoded:
    """The first photos of a split with their captions; a scorer brings its sides, too."""
    dataset = setting.dataset()
    members = SplitMembers.of(dataset, split, setting.photos or photos)
    ours = Matcher.of(checkpoint)
    if is_embedder(checkpoint.model):
        return encode_split(ours, None, dataset, members)
    stage1 = Matcher.of(load_checkpoint(setting.stage1, "stage1"))
    return encode_split(stage1, ours, dataset, members)


def recall_over_everything(
    setting: Setting,
    checkpoint: Checkpoint,
    photos: int,
    split: str = "test",
) -> dict[str, Any]:
    """A system on its own: every photo with every caption of a split, no shortlist."""
    encoded = encode_photos_of(setting, checkpoint, photos, split)
    if not encoded.has_sides:
        return evaluate_stage1(encoded)["stage1"]
    logits = score_everything(encoded, grid_scorer(checkpoint.model))
    return evaluate_scores(logits, encoded.photo_of_caption).to_json()


def tested_variation(
    setting: Setting,
    name: str,
    preset: str,
    model: dict[str, Any],
    training: dict[str, Any],
    photos: int,
) -> dict[str, Any]:
    """Trains and tests; the result is kept as a cell."""

    def compute() -> dict[str, Any]:
        checkpoint = train_variation(setting, preset, model, training)
        steps = checkpoint.config["training"]["epochs"]
        recall = recall_over_everything(setting, checkpoint, photos)
        return {"epochs": steps, "checkpoint": checkpoint.sha256, **recall}

    return cell(setting.work / "cells", name, compute)
