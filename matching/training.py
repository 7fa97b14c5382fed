"""The loop that every system trains in: resumable after a kill at any moment, to the same result.

All state lives in one safetensors file (weights, running mean of the weights, optimiser) with the
step and the validation history in its metadata, so it is replaced whole. Randomness is seeded by
(seed, step): nothing of it has to be saved.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from matching.config import Training, one_of
from matching.files import replacing

_SAVE_EVERY_SECONDS = 40  # a kill loses at most this and the step under way
_PRINT_EVERY_SECONDS = 15
log = logging.getLogger(__name__)


class Recipe(Protocol):
    """What a system brings to the loop."""

    epochs: int
    steps_an_epoch: int
    model: nn.Module

    def optimiser(self) -> torch.optim.Optimizer: ...  # `peak` in each group: its learning rate
    def batches(self, epoch: int, first_step: int) -> Iterator[Any]: ...
    def loss(self, batch: Any, epoch: int) -> Tensor: ...
    def warning(self, loss: float, epoch: int) -> str | None: ...
    def validate(self, model: nn.Module) -> dict[str, Any]: ...
    def save_best(self, weights: dict[str, Tensor], validation: dict[str, Any]) -> None: ...


@dataclass
class Progress:
    step: int = 0
    best: float = -math.inf
    history: list[dict[str, Any]] = field(default_factory=list)


def learning_rate_factor(config: Training, step: int, total: int) -> float:
    """Warm-up and cosine decay to zero, or a tenth from an epoch on."""
    if config.schedule == "step":
        return 1.0 if step * config.epochs < config.decay_epoch * total else 0.1
    warm = max(1, round(config.warmup * total))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


def make_optimiser(model: nn.Module, config: Training) -> torch.optim.Optimizer:
    """Pretrained text layers have a learning rate of their own; biases and norms do not decay."""
    pretrained = model.config.word_encoder in ("minilm", "bert")
    tuned = list(model.text.parameters()) if pretrained else []
    known = {id(p) for p in tuned}
    own = [p for p in model.parameters() if id(p) not in known and p.requires_grad]
    rate = config.learning_rate
    groups = [
        {"params": [p for p in own if p.ndim > 1], "peak": rate},
        {"params": [p for p in own if p.ndim < 2], "peak": rate, "weight_decay": 0.0},
        {
            "params": [p for p in tuned if p.requires_grad],
            "peak": config.backbone_learning_rate,
        },
    ]
    groups = [group for group in groups if group["params"]]
    kind = one_of("optimiser", config.optimiser, ("adamw", "adam", "sgd"))
    if kind == "sgd":  # as CAMP's release
        decay = config.weight_decay
        return torch.optim.SGD(groups, lr=rate, momentum=0.9, nesterov=True, weight_decay=decay)
    algorithm = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
    return algorithm(groups, lr=rate, weight_decay=config.weight_decay)


class Trainer:
    def __init__(
        self, recipe: Recipe, config: Training, run_folder: Path, settings: dict[str, Any]
    ):
        self._recipe, self._config = recipe, config
        self._path = run_folder / "state.safetensors"
        self._settings = settings
        self._total = recipe.epochs * recipe.steps_an_epoch
        if not self._total:
            raise ValueError(
                "there are fewer training photos than one step takes: give more --features, or a "
                "smaller --groups, --group-size or --pool-size",
            )
        self._optimiser = recipe.optimiser()
        self._average = {n: t.clone() for n, t in recipe.model.state_dict().items()}
        self._progress = Progress()
        if self._path.exists():
            self._restore()

    def run(self) -> list[dict[str, Any]]:
        """Trains to the end and returns the validations, one an epoch."""
        while self._progress.step < self._total:
            epoch, first = divmod(self._progress.step, self._recipe.steps_an_epoch)
            self._run_epoch(epoch, first)
        return self._progress.history

    def _run_epoch(self, epoch: int, first: int) -> None:
        recipe, progress = self._recipe, self._progress
        saved = printed = began = time.monotonic()
        began_at = progress.step
        for batch in recipe.batches(epoch, first):
            loss = self._step(batch)
            now = time.monotonic()
            ends_epoch = progress.step % recipe.steps_an_epoch == 0
            if now - printed > _PRINT_EVERY_SECONDS or ends_epoch:
                printed = now
                pace = (now - began) / (progress.step - began_at)
                log.info(
                    "epoch %d step %d of %d, loss %.4f, %.2f s a step, %.1f min left",
                    epoch + 1,
                    progress.step,
                    self._total,
                    loss,
                    pace,
                    pace * (self._total - progress.step) / 60,
                )
                if (warning := recipe.warning(loss, epoch)) is not None:
                    log.warning("%s", warning)
            if ends_epoch:
                self._validate(epoch)
            if now - saved > _SAVE_EVERY_SECONDS or ends_epoch:
                self._save()
                saved = time.monotonic()

    def _step(self, batch: Any) -> float:
        recipe, step = self._recipe, self._progress.step
        torch.manual_seed(self._config.seed * 1_000_003 + step)
        factor = learning_rate_factor(self._config, step, self._total)
        for group in self._optimiser.param_groups:
            group["lr"] = group["peak"] * factor
        recipe.model.train()
        loss = recipe.loss(batch, step // recipe.steps_an_epoch)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(recipe.model.parameters(), self._config.clip)
        self._optimiser.step()
        self._progress.step += 1
        # A young mean follows the weights closely; it reaches its decay after a while.
        decay = min(self._config.average_decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, tensor in recipe.model.state_dict().items():
                if tensor.is_floating_point():
                    self._average[name].lerp_(tensor, 1 - decay)
                else:  # counters of batch norms
                    self._average[name].copy_(tensor)
        return loss.item()

    def _validate(self, epoch: int) -> None:
        recipe, progress = self._recipe, self._progress
        trained = {n: t.clone() for n, t in recipe.model.state_dict().items()}
        recipe.model.load_state_dict(self._average)
        recipe.model.eval()
        with torch.inference_mode():
            validation = {"epoch": epoch + 1, **recipe.validate(recipe.model)}
        recipe.model.load_state_dict(trained)
        progress.history.append(validation)
        log.info("validation %s", json.dumps(validation))
        if validation["selection"] > progress.best:
            progress.best = validation["selection"]
            recipe.save_best(self._average, validation)

    def _save(self) -> None:
        tensors = {f"model.{n}": t for n, t in self._recipe.model.state_dict().items()}
        tensors |= {f"average.{n}": t for n, t in self._average.items()}
        for index, state in self._optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{n}": t for n, t in state.items()}
        progress = {"step": self._progress.step, "best": self._progress.best}
        document = {**progress, "history": self._progress.history, "settings": self._settings}
        with replacing(self._path) as temporary:
            metadata = {"progress": json.dumps(document)}
            save_file({n: t.contiguous() for n, t in tensors.items()}, temporary, metadata)

    def _restore(self) -> None:
        tensors: dict[str, dict[str, Tensor]] = {"model": {}, "average": {}, "optimiser": {}}
        try:
            with safe_open(self._path, "pt") as stored:
                document = json.loads(stored.metadata()["progress"])
                for name in stored.keys():  # noqa: SIM118 (not a dict)
                    part, rest = name.split(".", 1)
                    tensors[part][rest] = stored.get_tensor(name)
        except SafetensorError as error:
            raise ValueError(
                f"{self._path} is damaged ({error}): delete it to start anew"
            ) from None
        if document["settings"] != self._settings:
            raise ValueError(
                f"{self._path} was begun with other settings: {document['settings']}, now "
                f"{self._settings}; give another --run or delete the folder",
            )
        self._recipe.model.load_state_dict(tensors["model"])
        self._average = tensors["average"]
        states: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors["optimiser"].items():
            index, key = name.split(".", 1)
            states.setdefault(int(index), {})[key] = tensor
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": states, "param_groups": groups})
        self._progress = Progress(document["step"], document["best"], document["history"])
        log.info("%s: going on at step %d", self._path, self._progress.step)
