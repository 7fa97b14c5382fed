"""Losses against loops over single numbers and cases worked out by hand."""

import math

import pytest
import torch

from matching.losses import (
    binary,
    contrastive,
    hinge_has_collapsed,
    mean_gate_binary,
    ranking,
)


def random_scores(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def ranking_by_loops(scores, margin, hardest, reduction, k):
    """scores: list of rows, photos by captions."""
    photos, captions = len(scores), len(scores[0])
    directions = []
    for anchor_is_photo in (True, False):
        terms = []
        for j in range(captions):
            i, positive = j // k, scores[j // k][j]
            if anchor_is_photo:
                negatives = [scores[i][c] for c in range(captions) if c // k != i]
            else:
                negatives = [scores[p][j] for p in range(photos) if p != i]
            hinges = [max(0.0, margin + negative - positive) for negative in negatives]
            if hardest:
                terms.append(max(hinges))
            else:
                terms.append(sum(hinges) / (len(hinges) if reduction == "mean" else 1))
        directions.append(sum(terms) / (len(terms) if reduction == "mean" else 1))
    return sum(directions)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("hardest", [True, False])
@pytest.mark.parametrize("k", [1, 3])
def test_ranking_equals_loops(k, hardest, reduction):
    scores = random_scores(2, 4, 4 * k, scale=0.3)
    expected = [ranking_by_loops(g.tolist(), 0.2, hardest, reduction, k) for g in scores]
    found = ranking(scores, 0.2, hardest, reduction, k)
    assert found.item() == pytest.approx(sum(expected) / 2, abs=1e-5)
    assert expected[0] > 0.1, "a loss of zero would prove nothing"


def test_ranking_by_hand():
    scores = torch.tensor([[0.5, 0.4, 0.1], [0.6, 0.7, 0.0], [0.2, 0.3, 0.9]])
    by_photo = (0.2 + 0.4 - 0.5) + (0.2 + 0.6 - 0.7) + 0
    by_caption = (0.2 + 0.6 - 0.5) + 0 + 0
    assert ranking(scores, 0.2).item() == pytest.approx(by_photo + by_caption, abs=1e-6)


def test_own_captions_are_no_negatives():
    scores = torch.tensor([[0.1, 0.9, 0.0, 0.0], [-1.0, 0.0, 0.9, 0.1]])
    # the weak captions (0.1) lose to nothing but their siblings, which do not count
    assert ranking(scores, 0.1, captions_a_photo=2).item() == pytest.approx(0.0, abs=1e-6)


def test_ranking_needs_the_captions_of_every_photo():
    with pytest.raises(ValueError, match="4 photos by 6 captions.*there must be 8 captions"):
        ranking(torch.zeros(4, 6), 0.2, captions_a_photo=2)
    with pytest.raises(ValueError, match="reduction"):
        ranking(torch.zeros(4, 4), 0.2, reduction="max")


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("k", [1, 5])
def test_a_collapsed_hinge_is_seen(k, reduction):
    same = torch.full((8, 8 * k), 0.3)
    collapsed = ranking(same, 0.2, reduction=reduction, captions_a_photo=k).item()
    assert hinge_has_collapsed(collapsed, 0.2, 8 * k, reduction)
    assert hinge_has_collapsed(collapsed * 1.004, 0.2, 8 * k, reduction)
    for other in (0.99, 1.01):
        assert not hinge_has_collapsed(collapsed * other, 0.2, 8 * k, reduction)


def test_the_collapse_that_users_report():
    assert hinge_has_collapsed(51.2, margin=0.2, size=128, reduction="sum")
    assert not hinge_has_collapsed(51.2, margin=0.2, size=256, reduction="sum")


def binary_by_loops(logits, hardest, reduction):
    size, total = len(logits), 0.0
    probability = [[1 / (1 + math.exp(-x)) for x in row] for row in logits]
    for i in range(size):
        others = [j for j in range(size) if j != i]
        by_photo = [-math.log(1 - probability[i][j]) for j in others]
        by_caption = [-math.log(1 - probability[j][i]) for j in others]
        if hardest:
            negative = max(by_photo) + max(by_caption)
        else:
            negative = sum(by_photo) / (size - 1) + sum(by_caption) / (size - 1)
        total += -2 * math.log(probability[i][i]) + negative
    return total if reduction == "sum" else total / size / 4


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("hardest", [True, False])
def test_binary_equals_loops(hardest, reduction):
    logits = random_scores(3, 5, 5, scale=2.0)
    expected = sum(binary_by_loops(group.tolist(), hardest, reduction) for group in logits) / 3
    assert binary(logits, hardest, reduction).item() == pytest.approx(expected, rel=1e-5)


def test_binary_keeps_a_gradient_where_a_clamp_would_not():
    logits = (40 * (1 - 2 * torch.eye(3))).requires_grad_()  # everything is wrong, and sure of it
    binary(logits).backward()
    assert (logits.grad.diagonal() < -0.1).all()


def test_hardest_negative_binary_has_the_right_sign():
    # m = sigmoid: matching pairs 0.9 and 0.6; mismatched 0.3 and 0.2 (and an easy 0.01)
    m = torch.tensor([[0.9, 0.3, 0.01], [0.2, 0.6, 0.01], [0.01, 0.01, 0.8]])
    logits = torch.log(m / (1 - m))
    positive = -2 * (math.log(0.9) + math.log(0.6) + math.log(0.8))
    by_photo = -(math.log(0.7) + math.log(0.8) + math.log(0.99))
    by_caption = -(math.log(0.8) + math.log(0.7) + math.log(0.99))
    expected = (positive + by_photo + by_caption) / 3 / 4
    assert binary(logits).item() == pytest.approx(expected, abs=1e-6)
    better = logits + 3 * torch.eye(3)
    assert binary(better) < binary(logits)


def test_contrastive_of_two_pairs():
    scores = torch.tensor([[2.0, 0.0], [1.0, 3.0]])
    by_photo = (math.log(1 + math.exp(0 - 2)) + math.log(1 + math.exp(1 - 3))) / 2
    by_caption = (math.log(1 + math.exp(1 - 2)) + math.log(1 + math.exp(0 - 3))) / 2
    assert contrastive(scores).item() == pytest.approx((by_photo + by_caption) / 2, abs=1e-6)


def test_mean_gate_binary():
    gates = torch.tensor([[0.8, 0.1], [0.4, 0.5]])
    matching = -(math.log(0.8) + math.log(0.5)) / 2
    mismatched = -(math.log(0.9) + math.log(0.6)) / 2
    expected = (matching + mismatched) / 2
    assert mean_gate_binary(gates).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_groups_are_averaged(reduction):
    scores = random_scores(3, 4, 4)

    def hinge(group):
        return ranking(group, 0.2, reduction=reduction)

    def pairs(group):
        return binary(group, reduction=reduction)

    for loss in (contrastive, binary, hinge, pairs):
        alone = torch.stack([loss(group) for group in scores]).mean()
        torch.testing.assert_close(loss(scores), alone)


@pytest.mark.parametrize("hardest", [True, False])
def test_gradients(hardest):
    scores = random_scores(3, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: ranking(s, 0.2, hardest), (scores,))
    assert torch.autograd.gradcheck(lambda s: binary(s, hardest), (scores,))
