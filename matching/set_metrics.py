"""How far the members of a set lie apart: collapse, as DivE (Kim et al., CVPR 2023) measures it."""

from __future__ import annotations

import numpy as np


def circular_variance(sets: np.ndarray) -> float:
    """1 - |mean of the unit vectors of a set|, the mean over sets; 0 if all members are the same.

    sets (B, K, D).
    """
    if sets.ndim != 3 or not len(sets):
        raise ValueError(f"sets must have shape (B, K, D) with B of at least 1, got {sets.shape}")
    sets = np.asarray(sets, np.float64)
    unit = sets / np.maximum(np.linalg.norm(sets, axis=-1, keepdims=True), 1e-12)
    return float((1 - np.linalg.norm(unit.mean(1), axis=-1)).mean())
