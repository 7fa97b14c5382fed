"""CAMP as the authors released it: sizes and costs measured on their code, and its messages."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from matching.config import CampConfig
from matching.models.camp import Camp
from tests.matching.camp_loops import FORMS, D, K, made

REGIONS, SIZE = 36, 1024


@pytest.fixture(scope="module")
def full_size() -> Camp:
    """The sizes of the authors' checkpoint, without memory for the weights."""
    with torch.device("meta"):
        return Camp(CampConfig(dimension=SIZE, key_dimension=SIZE, **FORMS["release"]))


def multiplications(call) -> float:
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops() / 2


def test_the_scorer_has_as_many_parameters_as_theirs(full_size):
    scorer = [full_size.photo, full_size.caption, full_size.score]
    count = sum(parameter.numel() for part in scorer for parameter in part.parameters())
    assert round(count / 1e6, 2) == 16.79
    shapes = {name: tuple(p.shape) for name, p in full_size.photo.named_parameters()}
    square = (SIZE, SIZE)
    assert shapes == {
        "key.weight": square,
        "query.weight": square,
        "message_query.weight": square,
        "message_key.weight": square,
        "fusion.weight": (SIZE, 2 * SIZE),
        "aggregation.0.weight": square,
        "aggregation.0.bias": (SIZE,),
        "aggregation.2.weight": (4, SIZE),
        "aggregation.2.bias": (4,),
    }
    assert full_size.score[0].weight.shape == (SIZE, 2 * SIZE)


@pytest.mark.parametrize(("words", "expected"), [(50, 0.103e9), (14, 0.058e9)])
def test_a_pair_costs_what_the_factored_equations_cost(full_size, words, expected):
    """Products of one pair, by differences, so that those of single items cancel out."""

    def cost(photos: int, captions: int) -> float:
        photo = torch.empty(photos, REGIONS, full_size.side_width, device="meta")
        caption = torch.empty(captions, words, full_size.side_width, device="meta")
        mask = torch.ones(captions, words, dtype=torch.bool, device="meta")
        return multiplications(lambda: full_size(photo, caption, mask))

    pair = cost(3, 3) - cost(2, 3) - cost(3, 2) + cost(2, 2)
    assert pair == pytest.approx(expected, rel=0.01)


def test_a_pair_costs_what_the_plain_equations_cost(full_size):
    v, t = torch.empty(1, REGIONS, SIZE, device="meta"), torch.empty(50, SIZE, device="meta")
    cost = multiplications(lambda: full_size.score_plainly(v, t))
    queries_and_keys = 2 * (REGIONS + 50) * SIZE**2  # of items, not of pairs
    assert cost - queries_and_keys == pytest.approx(0.468e9, rel=0.01)


@torch.no_grad()
def test_keys_fusion_and_score_start_within_the_authors_bound():
    torch.manual_seed(3)
    camp = Camp(CampConfig(dimension=D, key_dimension=K, hidden=16, **FORMS["release"]))
    bound = math.sqrt(6 / (D + D))
    for layer in (camp.photo.key, camp.caption.fusion, camp.score[0], camp.score[2]):
        largest = layer.weight.abs().max().item()
        assert 0.8 * bound < largest <= bound
    assert camp.score[0].bias.abs().max() == 0
    # torch's default, which the authors leave to the other layers, is narrower
    assert camp.photo.query.weight.abs().max() <= 1 / math.sqrt(D)


@torch.no_grad()
def test_messages_have_length_one_and_attention_sums_to_one():
    """Seen through the gate, sigmoid(v . m): with v = 10 m it is sigmoid(10) for one word."""
    camp = made(FORMS["release"])
    generator = torch.Generator().manual_seed(4)
    t = torch.randn(1, 1, D, generator=generator)
    direction = t / t.norm()
    v = torch.cat([10 * direction, -3 * direction], dim=1)
    scores = camp(camp.photo_side_of(v), camp.caption_side_of(t), torch.ones(1, 1, dtype=bool))
    expected = torch.tensor([10.0, -3.0]).sigmoid()
    torch.testing.assert_close(scores.region_gates[0, 0], expected, atol=1e-5, rtol=1e-5)
    v, t = torch.randn(2, 5, D, generator=generator), torch.randn(3, 4, D, generator=generator)
    mask = torch.arange(4) < torch.tensor([[4], [2], [1]])
    scores = camp(camp.photo_side_of(v), camp.caption_side_of(t), mask)
    for attention in (scores.word_attention, scores.region_attention):
        torch.testing.assert_close(attention.sum(-1), torch.ones(attention.shape[:-1]))
    assert scores.region_attention[:, 1, :, 2:].abs().max() == 0
    assert camp.side_width == 3 * D + 4 * K


@torch.no_grad()
def test_refining_is_not_the_identity():
    """The second attention must move the scores, else the factored product proves nothing."""
    camp = made(FORMS["release"])
    generator = torch.Generator().manual_seed(4)
    v, t = torch.randn(2, 5, D, generator=generator), torch.randn(4, D, generator=generator)
    before = camp.score_plainly(v, t)
    camp.photo.message_query.weight.mul_(3)
    after = camp.score_plainly(v, t)
    assert (before.region_attention - after.region_attention).abs().max() > 1e-2
    assert (before.logit - after.logit).abs().max() > 1e-4
