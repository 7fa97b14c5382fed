"""A checkpoint is a folder: config.json, model.safetensors (fp16), metrics.json. No pickle."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from matching.config import CampConfig, VseInfinityConfig, settings_from
from matching.files import read_json, replacing, sha256_of, write_json
from matching.models.camp import Camp
from matching.models.vse_infinity import VseInfinity

FORMAT_VERSION = 1
SYSTEMS = {"vse_infinity": (VseInfinity, VseInfinityConfig), "camp": (Camp, CampConfig)}


@dataclass(frozen=True)
class Checkpoint:
    system: str
    model: nn.Module
    config: dict[str, Any]  # the whole config.json
    sha256: str  # of model.safetensors


def save_checkpoint(
    folder: Path,
    system: str,
    weights: dict[str, torch.Tensor],
    model_config: Any,
    details: dict[str, Any],
) -> None:
    """Writes weights as fp16; the model that is evaluated and exported is the one read back."""
    halves = {name: tensor.half().contiguous() for name, tensor in weights.items()}
    with replacing(folder / "model.safetensors") as temporary:
        save_file(halves, temporary)
    config = {"format_version": FORMAT_VERSION, "system": system}
    write_json(
        folder / "config.json",
        {**config, "model": dataclasses.asdict(model_config), **details},
    )


def load_checkpoint(folder: Path, system: str) -> Checkpoint:
    """Reads a checkpoint of the given system, ready to evaluate, or says what is wrong with it."""
    config = read_json(folder / "config.json")
    found = (config.get("format_version"), config.get("system"))
    if found != (FORMAT_VERSION, system):
        raise ValueError(
            f"{folder}/config.json is of format and system {found}, expected "
            f"{(FORMAT_VERSION, system)}: give a checkpoint of {system}",
        )
    kind, config_kind = SYSTEMS[system]
    model = kind(settings_from(config_kind, config["model"], f"{folder}/config.json"))
    path = folder / "model.safetensors"
    try:
        weights = {name: tensor.float() for name, tensor in load_file(path).items()}
        model.load_state_dict(weights)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing") from None
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} does not fit its config.json or is damaged: {reason}") from None
    return Checkpoint(system, model.eval(), config, sha256_of(path))


def record_metrics(folder: Path, name: str, document: dict[str, Any]) -> None:
    """Adds a result to the metrics.json of a checkpoint."""
    path = folder / "metrics.json"
    known = read_json(path) if path.exists() else {}
    write_json(path, {**known, name: document})
