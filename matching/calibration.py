"""Is a shown probability what it says? Expected calibration error (Guo et al., ICML 2017)."""

from __future__ import annotations

import numpy as np

_BINS = 10


def expected_calibration_error(probabilities: np.ndarray, right: np.ndarray) -> float:
    """The mean distance of probability and share of right ones over bins of equal width.

    probabilities (n,), right (n,) bool.
    """
    places = np.minimum((probabilities * _BINS).astype(np.int64), _BINS - 1)
    error = 0.0
    for place in range(_BINS):
        inside = places == place
        if inside.any():
            distance = abs(probabilities[inside].mean() - right[inside].mean())
            error += float(distance) * inside.mean()
    return error
