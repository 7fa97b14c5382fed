"""The factored scorer against the equations, and what padding and order must not change."""

import math

import pytest
import torch

from matching.config import CampConfig
from matching.models.camp import Camp


@pytest.fixture
def camp() -> Camp:
    torch.manual_seed(5)
    model = Camp(CampConfig(dimension=32, key_dimension=16, hidden=24, dropout=0.0)).eval()
    with torch.no_grad():  # fresh weights score nearly everything alike: widen them
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


def pairs():
    generator = torch.Generator().manual_seed(6)
    v = torch.randn(3, 36, 32, generator=generator)
    t = torch.randn(4, 7, 32, generator=generator)
    lengths = [7, 5, 2, 1]
    mask = torch.arange(7)[None] < torch.tensor(lengths)[:, None]
    return v, t, mask, lengths


@torch.no_grad()
def test_factored_equals_naive(camp):
    v, t, mask, lengths = pairs()
    scores = camp(camp.photo_side(v), camp.caption_side(t), mask)
    assert scores.logit.std() > 0.1, "a test on constant scores would prove nothing"
    for c, n in enumerate(lengths):
        expected = camp.score_plainly(v, t[c, :n])
        ours = (
            scores.logit[:, c],
            scores.word_attention[:, c, :n],
            scores.region_attention[:, c, :, :n],
            scores.word_gates[:, c, :n],
            scores.region_gates[:, c],
        )
        for a, b in zip(ours, expected, strict=True):
            torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-5)


@torch.no_grad()
def test_naive_equals_a_loop_over_single_numbers(camp):
    """The equations once more, region by region and word by word, without a tensor product."""
    v, t, _, _ = pairs()
    v, t = v[0], t[0, :3]
    expected = camp.score_plainly(v[None], t)
    kv, kt = camp.photo.key(v), camp.caption.key(t)
    for i in range(36):
        weights = [math.exp(sum((kv[i] * kt[j]).tolist()) / 4) for j in range(3)]  # sqrt(16)
        weights = [w / sum(weights) for w in weights]
        message = sum(w * t[j] for j, w in enumerate(weights))
        agreement = sum((v[i] * message).tolist()) / 32
        gate = 1 / (1 + math.exp(-(15 * agreement - 3)))  # scale 10, bias -2, both times 1.5
        assert expected.region_gates[0, i].item() == pytest.approx(gate, abs=1e-5)
        for j in range(3):
            assert expected.region_attention[0, i, j].item() == pytest.approx(weights[j], abs=1e-5)


@torch.no_grad()
def test_padding_never_changes_a_score(camp):
    v, t, mask, _ = pairs()
    expected = camp(camp.photo_side(v), camp.caption_side(t), mask)
    longer = torch.cat([t, torch.full((4, 5, 32), 9.0)], dim=1)
    longer_mask = torch.cat([mask, torch.zeros(4, 5, dtype=torch.bool)], dim=1)
    padded = camp(camp.photo_side(v), camp.caption_side(longer), longer_mask)
    torch.testing.assert_close(padded.logit, expected.logit, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(padded.region_gates, expected.region_gates, atol=2e-6, rtol=1e-5)
    assert (padded.word_gates[..., 7:] == 0).all()
    ignoring = camp(
        camp.photo_side(v),
        camp.caption_side(longer),
        torch.ones_like(longer_mask),
    )
    assert (ignoring.logit - expected.logit).abs().max() > 1e-2, "a missing mask must be seen"


@torch.no_grad()
def test_order_of_the_batch_changes_nothing(camp):
    v, t, mask, _ = pairs()
    expected = camp(camp.photo_side(v), camp.caption_side(t), mask).logit
    photos, captions = torch.tensor([2, 0, 1]), torch.tensor([3, 1, 0, 2])
    shuffled = camp(
        camp.photo_side(v[photos]),
        camp.caption_side(t[captions]),
        mask[captions],
    ).logit
    torch.testing.assert_close(shuffled, expected[photos][:, captions], atol=2e-6, rtol=1e-5)


@torch.no_grad()
def test_groups_are_scored_apart(camp):
    v, t, mask, _ = pairs()
    photo, caption = camp.photo_side(v[:2]), camp.caption_side(t[:2])
    alone = camp(photo, caption, mask[:2])
    two = [type(s)(*(torch.stack([part, part.flip(0)]) for part in s)) for s in (photo, caption)]
    grouped = camp(*two, torch.stack([mask[:2], mask[:2].flip(0)]))
    torch.testing.assert_close(grouped.logit[0], alone.logit, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(grouped.logit[1], alone.logit.flip(0, 1), atol=2e-6, rtol=1e-5)
