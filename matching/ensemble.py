"""Ensembles: the plain mean of the similarity matrices of models (torch-free).

As SCAN, VSRN and VSE-infinity report theirs: no weights, no rescaling. Models of one kind have
scores of one scale; where kinds are mixed, the one with the widest spread decides most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


def mean_of(matrices: Iterable[np.ndarray]) -> np.ndarray:
    """The mean of two or more matrices (photos, captions); they may come one by one."""
    total: np.ndarray | None = None
    count = 0
    for count, matrix in enumerate(matrices, 1):
        _check(matrix, total, count)
        if total is None:
            total = np.array(matrix, np.promote_types(matrix.dtype, np.float32))
        elif np.can_cast(matrix.dtype, total.dtype):
            total += matrix
        else:
            total = total + matrix
    if total is None or count < 2:
        raise ValueError(f"an ensemble is of two or more models, got {count}")
    total /= count
    return total


def _check(matrix: np.ndarray, total: np.ndarray | None, count: int) -> None:
    if matrix.ndim != 2:
        raise ValueError(f"model {count}: scores must be (photos, captions), got {matrix.shape}")
    if total is not None and matrix.shape != total.shape:
        raise ValueError(
            f"model {count} of the ensemble has scores {matrix.shape}, the first one "
            f"{total.shape}; evaluate both on the same photos and captions"
        )
    if np.isnan(matrix).any():
        raise ValueError(f"model {count} of the ensemble has scores that are not numbers (NaN)")


@dataclass(frozen=True)
class Directions:
    """What photos rank captions by, and what captions rank photos by: both (photos, captions)."""

    by_photo: np.ndarray
    by_caption: np.ndarray


def mean_of_directions(models: Iterable[Directions]) -> Directions:
    """The ensemble of two-stage models, whose directions have a matrix each."""
    models = list(models)
    return Directions(
        mean_of(model.by_photo for model in models),
        mean_of(model.by_caption for model in models),
    )
