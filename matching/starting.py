"""Where a model's weights come from before its first step."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from matching.models.projection import Projection

# Of CAMP: what stage 2 of the authors' release trains while everything else stays.
_FUSION_PARTS = ("fusion", "aggregation", "score", "gate")


@torch.no_grad()
def start_from_stage1(model: nn.Module, stage1: nn.Module, photo_embeddings: np.ndarray) -> None:
    """Gives a system the encoders of stage 1, turned into its own, smaller space.

    Regions and words of stage 1 already lie near each other where they mean the same. The main
    directions of the photos' embeddings keep most of that. photo_embeddings: (photos, D).
    """
    if type(model.text) is not type(stage1.text):
        raise ValueError(
            f"start is stage1, but the system reads words by {model.config.word_encoder} and "
            f"stage 1 by {stage1.config.word_encoder}: use --start scratch",
        )
    model.text.load_state_dict(stage1.text.state_dict())
    _, _, directions = np.linalg.svd(
        photo_embeddings - photo_embeddings.mean(0),
        full_matrices=False,
    )
    basis = torch.from_numpy(directions[: model.config.dimension]).float()  # (D, D of stage 1)
    for ours, theirs in ((model.regions, stage1.regions), (model.words, stage1.words)):
        if not (isinstance(ours, Projection) and isinstance(theirs, Projection)):
            continue
        ours.norms.load_state_dict(theirs.norms.state_dict())
        if ours.widen.weight.shape != theirs.widen.weight.shape:
            continue  # other widths: these parts start at random
        if basis.shape != (len(ours.linear.bias), len(theirs.linear.bias)):
            continue
        ours.widen.load_state_dict(theirs.widen.state_dict())
        for name in ("linear", "narrow"):
            own, other = getattr(ours, name), getattr(theirs, name)
            own.weight.copy_(basis @ other.weight)
            own.bias.copy_(basis @ other.bias)


@torch.no_grad()
def start_from_checkpoint(model: nn.Module, other: nn.Module) -> list[str]:
    """Takes every weight of the other model that has the same name and shape; returns the rest.

    Where CAMP's agreement joins a trained model, it counts in full from the first step.
    """
    theirs = other.state_dict()
    missing = []
    for name, tensor in model.state_dict().items():
        if name in theirs and theirs[name].shape == tensor.shape:
            tensor.copy_(theirs[name])
        else:
            missing.append(name)
            if name.endswith(".agreement_scale"):
                tensor.fill_(1.0)
    return missing


def train_only_fusion(model: nn.Module) -> None:
    """Freezes everything but fusion, gates, aggregation and score."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(part in name.split(".") for part in _FUSION_PARTS))
