"""Losses against cases worked out by hand."""

import math

import pytest
import torch

from matching.losses import contrastive, hardest_negative_binary, mean_gate_binary


def test_contrastive_of_two_pairs():
    scores = torch.tensor([[2.0, 0.0], [1.0, 3.0]])
    by_photo = (math.log(1 + math.exp(0 - 2)) + math.log(1 + math.exp(1 - 3))) / 2
    by_caption = (math.log(1 + math.exp(1 - 2)) + math.log(1 + math.exp(0 - 3))) / 2
    assert contrastive(scores).item() == pytest.approx((by_photo + by_caption) / 2, abs=1e-6)


def test_hardest_negative_binary_has_the_right_sign():
    # m = sigmoid: matching pairs 0.9 and 0.6; mismatched 0.3 and 0.2 (and an easy 0.01)
    m = torch.tensor([[0.9, 0.3, 0.01], [0.2, 0.6, 0.01], [0.01, 0.01, 0.8]])
    logits = torch.log(m / (1 - m))
    positive = -2 * (math.log(0.9) + math.log(0.6) + math.log(0.8))
    by_photo = -(math.log(0.7) + math.log(0.8) + math.log(0.99))
    by_caption = -(math.log(0.8) + math.log(0.7) + math.log(0.99))
    expected = (positive + by_photo + by_caption) / 3 / 4
    assert hardest_negative_binary(logits).item() == pytest.approx(expected, abs=1e-6)
    better = logits + 3 * torch.eye(3)
    assert hardest_negative_binary(better) < hardest_negative_binary(logits)


def test_mean_gate_binary():
    gates = torch.tensor([[0.8, 0.1], [0.4, 0.5]])
    matching = -(math.log(0.8) + math.log(0.5)) / 2
    mismatched = -(math.log(0.9) + math.log(0.6)) / 2
    expected = (matching + mismatched) / 2
    assert mean_gate_binary(gates).item() == pytest.approx(expected, abs=1e-6)


def test_groups_are_averaged():
    scores = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
    for loss in (contrastive, hardest_negative_binary):
        alone = torch.stack([loss(group) for group in scores]).mean()
        torch.testing.assert_close(loss(scores), alone)
