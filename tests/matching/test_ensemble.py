"""The mean of matrices against a loop over pairs."""

import numpy as np
import pytest

from matching.ensemble import Directions, mean_of, mean_of_directions
from matching.metrics import evaluate_directions, evaluate_scores


def plain_mean(matrices: list[np.ndarray]) -> list[list[float]]:
    rows, columns = matrices[0].shape
    return [
        [sum(float(m[i, j]) for m in matrices) / len(matrices) for j in range(columns)]
        for i in range(rows)
    ]


@pytest.mark.parametrize("count", [2, 3])
def test_mean_of_matrices(count):
    rng = np.random.default_rng(0)
    matrices = [rng.normal(size=(5, 9)).astype(np.float32) for _ in range(count)]
    kept = [matrix.copy() for matrix in matrices]
    mean = mean_of(matrices)
    np.testing.assert_allclose(mean, plain_mean(matrices), atol=1e-6)
    assert mean.dtype == np.float32
    for before, after in zip(kept, matrices, strict=True):
        np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(mean_of(m for m in matrices), mean)  # one by one


def test_mean_of_several_types():
    mixed = [np.array([[1, 2]]), np.array([[0.5, 0.25]], np.float32), np.array([[1e-12, 3.0]])]
    mean = mean_of(mixed)
    np.testing.assert_allclose(mean, plain_mean(mixed), rtol=1e-12)
    np.testing.assert_allclose(mean_of(mixed[::-1]), mean, rtol=1e-12)


def test_two_noisy_models_are_better_together():
    rng = np.random.default_rng(1)
    owners = np.repeat(np.arange(100), 5)
    true = owners[None] == np.arange(100)[:, None]
    models = [true + 0.45 * rng.normal(size=true.shape) for _ in range(2)]
    alone = max(evaluate_scores(model, owners).rsum for model in models)
    assert evaluate_scores(mean_of(models), owners).rsum > alone + 20


def test_two_stage_models_keep_their_directions_apart():
    rng = np.random.default_rng(2)
    models = [Directions(*rng.normal(size=(2, 4, 8))) for _ in range(3)]
    mean = mean_of_directions(model for model in models)
    np.testing.assert_allclose(mean.by_photo, plain_mean([m.by_photo for m in models]))
    np.testing.assert_allclose(mean.by_caption, plain_mean([m.by_caption for m in models]))
    evaluate_directions(mean.by_photo, mean.by_caption, np.repeat(np.arange(4), 2))


def test_what_is_no_ensemble_is_refused():
    matrix = np.zeros((4, 8), np.float32)
    with pytest.raises(ValueError, match="two or more models, got 1"):
        mean_of([matrix])
    with pytest.raises(ValueError, match="got 0"):
        mean_of([])
    with pytest.raises(ValueError, match=r"model 2 .* \(4, 7\).* \(4, 8\).*same photos"):
        mean_of([matrix, matrix[:, :7]])
    with pytest.raises(ValueError, match=r"\(photos, captions\), got \(4,\)"):
        mean_of([matrix[:, 0], matrix[:, 0]])
    with pytest.raises(ValueError, match="model 3 .*NaN"):
        mean_of([matrix, matrix, np.full_like(matrix, np.nan)])
