"""The synthetic experiment of GPO: its patterns, its error, and that it can be resumed."""

import math

import pytest
import torch

from matching.files import write_json
from matching.models.gpo import GeneralizedPooling
from matching.models.pooling import make_pooling
from matching.reproduce import vse_table6


def plain_coefficients(pattern: str, size: int) -> list[float]:
    if pattern == "A":
        return [1 / size] * size
    if pattern == "L":
        total = size * (size - 1) / 2
        return [(size - 1 - k) / total for k in range(size)]
    top = {"M-1": 1, "M-10": min(10, size), "T-50%": math.ceil(size / 2)}[pattern]
    return [1 / top] * top + [0.0] * (size - top)


@pytest.mark.parametrize("pattern", vse_table6.PATTERNS)
def test_patterns_match_their_definitions(pattern):
    sizes = torch.tensor([7, 10, 20, 25])
    found = vse_table6.true_coefficients(pattern, sizes, 25)
    for row, size in enumerate(sizes.tolist()):
        expected = torch.tensor(plain_coefficients(pattern, size) + [0.0] * (25 - size))
        torch.testing.assert_close(found[row], expected, atol=1e-6, rtol=0)


def test_the_error_matches_a_loop():
    torch.manual_seed(1)
    pooling = GeneralizedPooling(30)
    found = vse_table6.coefficient_error(pooling, "T-50%", 8, 12)
    table, errors = pooling.coefficient_table().tolist(), []
    for size in range(8, 13):
        truth = plain_coefficients("T-50%", size)
        squares = [(a - b) ** 2 for a, b in zip(table[size - 1], truth, strict=False)]
        errors.append(math.sqrt(sum(squares) / size))
    assert found == pytest.approx(sum(errors) / 5, abs=1e-6)


def test_training_learns_the_pattern(monkeypatch):
    monkeypatch.setattr(vse_table6, "SIZES", {"seen": (4, 8), "smaller": (3, 3), "larger": (9, 9)})
    for design, pattern, steps in (
        ("cos/sin + BiGRU", "M-1", 60),
        ("index + interpolation", "L", 250),
    ):
        few = vse_table6.train_cell(design, pattern, 2, 1)["rmse"]["seen"]
        many = vse_table6.train_cell(design, pattern, steps, 1)["rmse"]["seen"]
        assert many < 0.5 * few


def test_sorted_features_are_pooled_as_by_the_module():
    pooling = make_pooling("gpo", vse_table6.VseInfinityConfig(), 9)
    features, sizes = torch.randn(3, 6, 2), torch.tensor([2, 6, 3])
    mask = torch.arange(6) < sizes[:, None]
    ranked = features.masked_fill(~mask[..., None], -1e4).sort(1, descending=True).values
    found = vse_table6._pooled(pooling, sizes, ranked)
    torch.testing.assert_close(found, pooling(features, mask), atol=1e-5, rtol=0)


def test_a_run_resumes_and_says_what_holds(tmp_path, monkeypatch):
    trained = []

    def fake_cell(design, pattern, steps, seed):
        trained.append((design, pattern))
        error = 0.001 if design == vse_table6.OURS else 0.02
        rmse = dict.fromkeys(vse_table6.SIZES, error)
        return {"design": design, "pattern": pattern, "steps": steps, "seed": seed, "rmse": rmse}

    monkeypatch.setattr(vse_table6, "train_cell", fake_cell)
    table = vse_table6.table(tmp_path, steps=3)
    assert len(trained) == 20
    assert len(table["rows"]) == len(table["paper"]) == 12
    assert set(table["rows"][0]) == set(table["columns"])
    assert "claim holds" in table["verdict"]
    assert "on 5 of 5" in table["verdict"]
    write_json(tmp_path / "table.json", table)  # plain JSON

    trained.clear()
    assert vse_table6.table(tmp_path, steps=3) == table
    assert trained == []
    cells = sorted((tmp_path / "vse-table6" / "cells").iterdir())
    assert len(cells) == 20
    cells[0].unlink()
    vse_table6.table(tmp_path, steps=3)
    assert len(trained) == 1


def test_a_worse_result_is_said():
    rows = [
        {"design": design, "sizes": "seen", "mean": 0.02} | dict.fromkeys(vse_table6.PATTERNS, 0.02)
        for design in vse_table6.DESIGNS
    ]
    assert "does not hold" in vse_table6.verdict(rows)
    assert "on 0 of 5" in vse_table6.verdict(rows)
