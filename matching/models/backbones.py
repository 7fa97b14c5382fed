"""The two backbones as one thing: as published, or with the weights of python -m matching.tune."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from matching.files import read_json, write_json
from matching.models.image_backbone import ImageBackbone
from matching.models.image_views import ONE_VIEW, ImageViews, View
from matching.models.text_backbone import LowerTextBackbone
from matching.weight_parts import read_parts, write_parts

FORMAT_VERSION = 1
_WEIGHTS = "tuned.safetensors"  # the upper parts alone: the lower ones are in the packages


@dataclass(frozen=True)
class Backbones:
    image: ImageBackbone
    text: LowerTextBackbone
    views: tuple[View, ...] = ONE_VIEW

    @staticmethod
    def published() -> Backbones:
        return Backbones(ImageBackbone().eval(), LowerTextBackbone().eval())

    @staticmethod
    def load(folder: Path | None) -> Backbones:
        """Tuned backbones from their folder; the published ones if there is none."""
        backbones = Backbones.published()
        if folder is None:
            return backbones
        config = _read_config(folder)
        _load_tuned(backbones, folder / config.get("weights_in", "."))
        views = tuple(View.parse(view) for view in config.get("views", ["256"]))
        return replace(backbones, views=views)

    @property
    def photos(self) -> nn.Module:
        """From pixels to region features, in all views."""
        return self.image if self.views == ONE_VIEW else ImageViews(self.image, self.views).eval()

    @property
    def sha256(self) -> str:
        """Names weights and views: features and heads of different ones are never mixed."""
        weights = backbone_sha256(self.image, self.text)
        if self.views == ONE_VIEW:
            return weights
        return hashlib.sha256(" ".join([weights, *map(str, self.views)]).encode()).hexdigest()


def backbones_beside(checkpoint: Path) -> Path | None:
    """The tuned backbones that a checkpoint was trained on stand beside it, if it has any."""
    folder = checkpoint.resolve().parent / "backbones"
    return folder if (folder / "config.json").exists() else None


def backbone_sha256(*modules: nn.Module) -> str:
    digest = hashlib.sha256()
    for module in modules:
        for name, tensor in sorted(module.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def tuned_parameters(image: ImageBackbone, text: LowerTextBackbone) -> dict[str, Tensor]:
    """The parameters that tuning changes, by the names they are stored under."""
    return {f"image.{n}": p for n, p in image.tuned_parameters().items()} | {
        f"text.{n}": p for n, p in text.tuned_parameters().items()
    }


def save_backbones(folder: Path, weights: dict[str, Tensor], details: dict[str, object]) -> None:
    """Writes tuned weights as fp16: what is read back is what features are made with."""
    content = save({name: tensor.detach().half().contiguous() for name, tensor in weights.items()})
    write_parts(folder / _WEIGHTS, content)
    sha256 = hashlib.sha256(content).hexdigest()
    head = {"format_version": FORMAT_VERSION, "weights_sha256": sha256}
    write_json(folder / "config.json", {**head, **details})


def save_views(folder: Path, weights_in: str, views: tuple[View, ...]) -> None:
    """Backbones of other views with the weights of another folder, named relative to this one."""
    head = {"format_version": FORMAT_VERSION, "weights_in": weights_in}
    write_json(folder / "config.json", {**head, "views": [str(view) for view in views]})


def _read_config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    if config.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{folder}/config.json is of format {config.get('format_version')}, expected tuned "
            f"backbones of format {FORMAT_VERSION}: give a folder of python -m matching.tune",
        )
    return config


@torch.no_grad()
def _load_tuned(backbones: Backbones, folder: Path) -> None:
    config = _read_config(folder)
    try:
        content = read_parts(folder / _WEIGHTS)
        stored = load(content)
    except SafetensorError as error:
        raise ValueError(f"{folder / _WEIGHTS} is damaged: {error}; tune or copy again") from None
    if hashlib.sha256(content).hexdigest() != config["weights_sha256"]:
        raise ValueError(f"{folder}: {_WEIGHTS} and config.json are of different runs: tune again")
    parameters = tuned_parameters(backbones.image, backbones.text)
    for name in sorted(stored.keys() ^ parameters.keys()):
        problem = "lacks" if name in parameters else "has an unknown"
        raise ValueError(f"{folder / _WEIGHTS} {problem} tensor {name!r}: tune or copy again")
    for name, parameter in parameters.items():
        parameter.copy_(stored[name].float())
