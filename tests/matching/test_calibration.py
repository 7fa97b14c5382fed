"""The error of probabilities whose truth is known."""

import numpy as np
import pytest

from matching.calibration import expected_calibration_error


def test_true_probabilities_have_no_error():
    rng = np.random.default_rng(0)
    probabilities = rng.random(200_000)
    right = rng.random(200_000) < probabilities
    assert expected_calibration_error(probabilities, right) < 0.005


def test_by_hand():
    probabilities = np.array([0.05, 0.05, 0.95, 1.0])
    right = np.array([False, True, True, False])
    # First bin: 0.05 said, 0.5 right; last: 0.975 said, 0.5 right.
    assert expected_calibration_error(probabilities, right) == pytest.approx(
        0.5 * 0.45 + 0.5 * 0.475
    )
