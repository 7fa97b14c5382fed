"""Similarities of sets: torch and numpy against plain loops and against known values."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from matching.models.set_similarity import (
    chamfer,
    mean_probability,
    nearest_members,
    smooth_chamfer,
)
from matching.set_metrics import circular_variance
from matching.similarity import Similarity

ALPHA, SCALE, SHIFT = 16.0, 5.0, -2.0
TORCH = {
    "smooth_chamfer": lambda a, b: smooth_chamfer(a, b, ALPHA),
    "chamfer": chamfer,
    "max": nearest_members,
    "mean_probability": lambda a, b: mean_probability(
        a,
        b,
        torch.tensor(SCALE, dtype=a.dtype),
        torch.tensor(SHIFT, dtype=a.dtype),
    ),
}


def unit_sets(*shape: int, seed: int = 0) -> torch.Tensor:
    sets = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return sets / sets.norm(dim=-1, keepdim=True)


def plain_similarity(kind: str, first: torch.Tensor, second: torch.Tensor) -> float:
    """Two sets (K, D), (M, D), in plain numbers."""

    def product(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    cosines = [[product(a, b) for b in second.tolist()] for a in first.tolist()]
    turned = [list(column) for column in zip(*cosines, strict=True)]
    if kind == "max":
        return max(max(row) for row in cosines)
    if kind == "mean_probability":
        flat = [1 / (1 + math.exp(-SCALE * c - SHIFT)) for row in cosines for c in row]
        return sum(flat) / len(flat)

    def nearest(row: list[float]) -> float:
        if kind == "chamfer":
            return max(row)
        return math.log(sum(math.exp(ALPHA * c) for c in row)) / ALPHA

    one_way = sum(nearest(row) for row in cosines) / len(cosines)
    other_way = sum(nearest(row) for row in turned) / len(turned)
    return (one_way + other_way) / 2


@pytest.mark.parametrize("kind", TORCH)
def test_torch_matches_a_plain_loop_in_groups_and_with_sets_of_other_sizes(kind):
    photos, captions = unit_sets(2, 3, 4, 5), unit_sets(2, 6, 2, 5, seed=1)
    scores = TORCH[kind](photos, captions)
    assert scores.shape == (2, 3, 6)
    for group in range(2):
        for p in range(3):
            for c in range(6):
                expected = plain_similarity(kind, photos[group, p], captions[group, c])
                assert scores[group, p, c].item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", TORCH)
def test_numpy_matches_torch_whatever_the_chunks(kind, monkeypatch):
    photos, captions = unit_sets(7, 4, 6).float(), unit_sets(9, 4, 6, seed=1).float()
    expected = TORCH[kind](photos, captions).numpy()
    assert expected.std() > 0.02
    similarity = Similarity(kind, 4, ALPHA, SCALE, SHIFT)
    rows = photos.flatten(1).numpy(), captions.flatten(1).numpy()
    for chunk in (4_000_000, 300, 1):  # all at once, two queries at a time, one by one
        monkeypatch.setattr("matching.similarity._COSINES_A_CHUNK", chunk)
        found = similarity(*rows)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)
    # Photos or captions may be the queries.
    np.testing.assert_allclose(similarity(*rows[::-1]), expected.T, atol=1e-6, rtol=0)
    half = [x.astype(np.float16) for x in rows]  # as a gallery keeps them
    np.testing.assert_allclose(similarity(*half), expected, atol=5e-3, rtol=0)


def test_a_set_with_itself():
    same = unit_sets(1, 1, 8).expand(1, 4, 8)
    apart = torch.eye(8, dtype=torch.float64)[None, :4]
    above = 1 + math.log(4) / ALPHA
    assert smooth_chamfer(same, same, ALPHA).item() == pytest.approx(above, abs=1e-9)
    around = math.log(math.exp(ALPHA) + 3) / ALPHA
    assert smooth_chamfer(apart, apart, ALPHA).item() == pytest.approx(around, abs=1e-9)
    for kind in (chamfer, nearest_members):
        assert kind(same, same).item() == pytest.approx(1)
        assert kind(apart, apart).item() == pytest.approx(1)
    similarity = Similarity("smooth_chamfer", 4)
    rows = same.flatten(1).numpy()
    assert similarity(rows, rows).item() == pytest.approx(above, abs=1e-6)


def test_no_overflow_at_a_steep_alpha():
    photos = unit_sets(2, 4, 8).float()
    expected = chamfer(photos, photos)
    torch.testing.assert_close(smooth_chamfer(photos, photos, 1e4), expected, atol=1e-3, rtol=0)
    rows = photos.flatten(1).numpy()
    steep = Similarity("smooth_chamfer", 4, alpha=1e4)(rows, rows)
    np.testing.assert_allclose(steep, expected.numpy(), atol=1e-3)
    sharp = Similarity("mean_probability", 4, scale=1e4)(rows, rows)
    assert np.isfinite(sharp).all()


@pytest.mark.parametrize("kind", TORCH)
def test_gradients(kind):
    photos, captions = unit_sets(2, 3, 4).requires_grad_(), unit_sets(3, 3, 4, seed=1)
    assert torch.autograd.gradcheck(TORCH[kind], (photos, captions.requires_grad_()))


def test_cosine_is_the_plain_product():
    rows = unit_sets(5, 6).float().numpy()
    np.testing.assert_array_equal(Similarity()(rows[:2], rows), rows[:2] @ rows.T)


def test_json_and_wrong_settings():
    similarity = Similarity("mean_probability", 4, scale=3.0, shift=-1.0)
    assert Similarity.from_json(similarity.to_json()) == similarity
    assert Similarity.from_json({"kind": "cosine", "slots": 1}) == Similarity()
    with pytest.raises(ValueError, match="'slot' is not known"):
        Similarity.from_json({"kind": "max", "slot": 4})
    with pytest.raises(ValueError, match="'nearest'.*smooth_chamfer"):
        Similarity("nearest")
    with pytest.raises(ValueError, match="cosine.*4"):
        Similarity("cosine", 4)
    with pytest.raises(ValueError, match=r"queries.*\(2, 6\).*\(3, 6\)"):
        Similarity("max", 4)(np.zeros((2, 6), "f"), np.zeros((3, 6), "f"))
    with pytest.raises(ValueError, match=r"queries.*\(2, 8\).*\(3, 12\)"):
        Similarity("max", 4)(np.zeros((2, 8), "f"), np.zeros((3, 12), "f"))


def test_an_engine_needs_no_torch():
    code = "import sys, matching.similarity, matching.set_metrics; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_circular_variance():
    same = np.tile([[3.0, 4.0]], (1, 4, 1))  # lengths do not count
    assert circular_variance(same) == pytest.approx(0)
    opposite = np.array([[[1.0, 0.0], [-2.0, 0.0]]])
    assert circular_variance(opposite) == pytest.approx(1)
    square_angle = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    assert circular_variance(square_angle) == pytest.approx(1 - math.sqrt(0.5))
    both = np.concatenate([opposite, square_angle])
    assert circular_variance(both) == pytest.approx(1 - math.sqrt(0.5) / 2)
    with pytest.raises(ValueError, match=r"\(4, 2\)"):
        circular_variance(same[0])
