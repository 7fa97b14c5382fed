"""python -m matching.tune: trains the upper part of both backbones together with stage 1.

It starts from a stage 1 and the backbones it was trained on, published or tuned before, and leaves
tuned backbones and a stage 1 behind. Start it again after a kill and it goes on where it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from matching.allocation import keep_freed_memory
from matching.batches import drop_regions, made_ahead
from matching.caption_inputs import drop_words
from matching.checkpoint import Checkpoint, load_checkpoint, record_metrics, save_checkpoint
from matching.command import run_command
from matching.config import Training, add_flags, settings_from_flags
from matching.losses import agreement
from matching.lower_maps import LowerMaps
from matching.metrics import evaluate_scores
from matching.models.backbones import (
    Backbones,
    backbones_beside,
    save_backbones,
    tuned_parameters,
)
from matching.recipe import confusable_groups, score_loss
from matching.training import Trainer
from matching.tuning_set import TuningBatch, TuningSet, caption_tensors

_PHOTOS_AT_ONCE = 32  # cache-sized: larger runs are slower on a CPU
_CAPTIONS_AT_ONCE = 48
_LARGEST_SCALE = 4.6  # log of 100, as in matching.recipe

DEFAULTS = Training(
    epochs=2,
    groups=24,
    group_size=8,
    pool_size=1920,
    learning_rate=3e-4,
    backbone_learning_rate=2e-4,
    weight_decay=0.05,
    warmup=0.06,
    region_drop=0.2,
    word_drop=0.1,
    average_decay=0.99,
    contrastive_weight=1.0,
)


class TunedStage1(nn.Module):
    """Both backbones and stage 1 in one, from maps and piece ids to embeddings."""

    def __init__(self, backbones: Backbones, stage1: nn.Module, train_photos: int) -> None:
        super().__init__()
        self.image, self.text, self.stage1 = backbones.image, backbones.text, stage1
        self.image.to(memory_format=torch.channels_last)
        for parameter in tuned_parameters(self.image, self.text).values():
            parameter.requires_grad_(True)
        # Embeddings as each photo was last seen, and as they were when the epoch began: photos
        # that are taken for each other share a step. As buffers they survive a kill.
        width = stage1.embedding_width
        self.register_buffer("seen", torch.zeros(train_photos, width))
        self.register_buffer("seen_before", torch.zeros(train_photos, width))

    def regions(self, maps: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, R, channels)."""
        parts = maps.contiguous(memory_format=torch.channels_last).split(_PHOTOS_AT_ONCE)
        return torch.cat([self.image.upper(part) for part in parts])

    def embed_captions(self, piece_ids: Tensor, word_pieces: Tensor) -> Tensor:
        """(B, L), (B, N, L) -> (B, E); captions of like length run together, without padding."""
        lengths = (piece_ids != 0).sum(1)
        order, parts = lengths.argsort(), []
        for rows in order.split(_CAPTIONS_AT_ONCE):
            ids = piece_ids[rows, : int(lengths[rows].max())]
            words = word_pieces[rows, :, : ids.shape[1]]
            words = words[:, : int((words.sum(-1) > 0).sum(1).max())]
            parts.append(self.stage1.embed_captions(self.text(ids), ids != 0, words))
        return torch.cat(parts)[order.argsort()]


class TuningRecipe:
    def __init__(
        self,
        model: TunedStage1,
        config: Training,
        data: TuningSet,
        validation: LowerMaps,
        out: Path,
        details: dict[str, Any],
    ) -> None:
        self.model, self.epochs = model, config.epochs
        self._config, self._data, self._validation = config, data, validation
        self._size = config.groups * config.group_size
        self.steps_an_epoch = len(data) // config.pool_size * (config.pool_size // self._size)
        self._out, self._details = out, details

    def optimiser(self) -> torch.optim.Optimizer:
        config, heads = self._config, self.model.stage1
        text = list(heads.text.parameters())
        known = {id(p) for p in text}
        own = [p for p in heads.parameters() if id(p) not in known]
        tuned = list(tuned_parameters(self.model.image, self.model.text).values())
        groups = [
            {"params": [p for p in own if p.ndim > 1], "peak": config.learning_rate},
            {
                "params": [p for p in own if p.ndim < 2],
                "peak": config.learning_rate,
                "weight_decay": 0.0,
            },
            {"params": [*tuned, *text], "peak": config.backbone_learning_rate},
        ]
        return torch.optim.AdamW(groups, config.learning_rate, weight_decay=config.weight_decay)

    def batches(self, epoch: int, first_step: int) -> Iterator[TuningBatch]:
        config, rng = self._config, np.random.default_rng((self._config.seed, epoch))
        if first_step == 0:
            self.model.seen_before.copy_(self.model.seen)
        embeddings = self.model.seen_before.numpy()
        order = rng.permutation(len(self._data))
        groups = []
        for start in range(0, len(order) // config.pool_size * config.pool_size, config.pool_size):
            pool = order[start : start + config.pool_size]
            if epoch == 0:  # nothing was seen yet: any photos
                found = np.arange(len(pool)).reshape(-1, config.group_size)
            else:
                found = confusable_groups(embeddings[pool], config.group_size)
            whole = self._size // config.group_size * (len(pool) // self._size)
            found = found[rng.permutation(len(found))[:whole]]
            groups.append(pool[found].reshape(-1, self._size))
        steps = np.concatenate(groups)[rng.permutation(self.steps_an_epoch)]
        return made_ahead(
            partial(self._data.batch, steps[i], config.captions_a_photo, [config.seed, epoch, i])
            for i in range(first_step, len(steps))
        )

    def loss(self, batch: TuningBatch, epoch: int) -> Tensor:
        config, model = self._config, self.model
        regions, _ = drop_regions(model.regions(batch.maps), None, config.region_drop)
        photos = model.stage1.embed_photos(regions)
        word_pieces = drop_words(batch.word_pieces, config.word_drop)
        captions = model.embed_captions(batch.piece_ids, word_pieces)
        with torch.no_grad():
            model.seen[batch.photos] = photos.detach()
        scale = model.stage1.log_scale.clamp(max=_LARGEST_SCALE).exp()
        scores = model.stage1.similarity(photos, captions)[None]
        loss = score_loss(scores, config, config.hardest, scale)
        if batch.classes is not None:
            names = model.embed_captions(*batch.classes.captions)
            likeness = scale * model.stage1.similarity(photos, names)[None]
            loss = loss + config.class_weight * agreement(likeness, batch.classes.log_probabilities)
        return loss

    def warning(self, loss: float, epoch: int) -> str | None:
        return None

    def validate(self, model: TunedStage1) -> dict[str, Any]:
        data = self._validation
        members = np.flatnonzero(data.splits == "val")[:1000]
        photos = []
        for chunk in np.array_split(members, -(-len(members) // _PHOTOS_AT_ONCE)):
            maps = torch.from_numpy(data.maps(chunk, np.zeros(len(chunk), bool))).float()
            photos.append(model.stage1.embed_photos(model.regions(maps)))
        texts = [caption for member in members for caption in data.photos[member].captions[:5]]
        owners = [i for i, member in enumerate(members) for _ in data.photos[member].captions[:5]]
        captions = [
            model.embed_captions(*caption_tensors(texts[start : start + 128]))
            for start in range(0, len(texts), 128)
        ]
        scores = model.stage1.similarity(torch.cat(photos), torch.cat(captions)).numpy()
        retrieval = evaluate_scores(scores, np.array(owners))
        return {"selection": retrieval.rsum, "stage1": retrieval.to_json()}

    def save_best(self, weights: dict[str, Tensor], validation: dict[str, Any]) -> None:
        names = tuned_parameters(self.model.image, self.model.text)
        details = {**self._details, "epoch": validation["epoch"]}
        folder = self._out / "backbones"
        save_backbones(folder, {name: weights[name] for name in names}, details)
        heads = {
            n.removeprefix("stage1."): t for n, t in weights.items() if n.startswith("stage1.")
        }
        details["backbone_sha256"] = Backbones.load(folder).sha256
        stage1 = self.model.stage1
        save_checkpoint(self._out / "vse_infinity", "vse_infinity", heads, stage1.config, details)
        metrics = {"stage1": validation["stage1"]}
        record_metrics(self._out / "vse_infinity", "val", metrics)


def tune(
    start: Checkpoint,
    folders: list[LowerMaps],
    config: Training,
    out: Path,
    run_folder: Path,
) -> list[dict[str, Any]]:
    """Tunes to the end; the best weights by `val` are in `out`. Returns the validations."""
    backbones = Backbones.load(backbones_beside(start.folder))
    if start.config["backbone_sha256"] != backbones.sha256:
        raise ValueError(
            f"{start.folder} was trained on other backbones than the published ones or those "
            "beside it: give another",
        )
    data = TuningSet(folders, config.classes_a_group if config.class_weight else 0)
    details = {
        "training": dataclasses.asdict(config),
        "train_photos": len(data),
        "start_sha256": start.sha256,
        "captions_sha256": [folder.captions_sha256 for folder in folders],
    }
    torch.manual_seed(config.seed)
    model = TunedStage1(backbones, start.model, len(data))
    recipe = TuningRecipe(model, config, data, folders[0], out, details)
    return Trainer(recipe, config, run_folder, details).run()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.tune", description=__doc__)
    parser.add_argument(
        "--start-from", type=Path, default=Path("checkpoints/default/vse_infinity"), help="stage 1"
    )
    parser.add_argument(
        "--maps",
        type=Path,
        nargs="+",
        required=True,
        help="folders of python -m matching.lower_maps; the first one's `val` selects",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for both checkpoints")
    parser.add_argument("--run", type=Path, required=True, help="folder of the run's state")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_flags(parser, Training, DEFAULTS)
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    keep_freed_memory()
    history = tune(
        load_checkpoint(arguments.start_from, "stage1"),
        [LowerMaps(folder) for folder in arguments.maps],
        settings_from_flags(Training, arguments),
        arguments.out,
        arguments.run,
    )
    best = max(history, key=lambda validation: validation["selection"])
    text = f"{arguments.out}: rsum {best['selection']} on val after epoch {best['epoch']}"
    print(json.dumps({"out": str(arguments.out), "best": best}) if arguments.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
