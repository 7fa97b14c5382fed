"""SCAN against loops over single numbers, and what padding and order must not change."""

import itertools
import math

import pytest
import torch

from matching.config import ScanConfig
from matching.models.projection import l2_normalised
from matching.models.scan import Scan
from tests.matching.onnx_parity import dimension, exported_session, run

FORMS = list(itertools.product(("t2i", "i2t"), ("lse", "mean")))
LENGTHS, REGIONS = [5, 3, 1, 4], [4, 6, 2]


def scan(direction: str, aggregate: str) -> Scan:
    torch.manual_seed(1)
    attention, aggregation = (9.0, 6.0) if direction == "t2i" else (4.0, 5.0)
    config = ScanConfig(
        dimension=16,
        hidden=16,
        dropout=0.0,
        direction=direction,
        aggregate=aggregate,
        attention_temperature=attention,
        aggregate_temperature=aggregation,
    )
    return Scan(config).eval()


def pairs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    photos = l2_normalised(torch.randn(3, 6, 16, generator=generator, dtype=dtype))
    captions = l2_normalised(torch.randn(4, 5, 16, generator=generator, dtype=dtype))
    mask = torch.arange(5)[None] < torch.tensor(LENGTHS)[:, None]
    region_mask = torch.arange(6)[None] < torch.tensor(REGIONS)[:, None]
    return photos, captions, mask, region_mask


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def reference(queries, context, sharpness: float, lse: float | None):
    """The equations, number by number: score, attention[query][context]."""
    affinity = []
    for c in context:
        row = [dot(c, q) for q in queries]
        row = [x if x > 0 else 0.1 * x for x in row]
        length = math.sqrt(dot(row, row)) + 1e-8
        affinity.append([x / length for x in row])
    attention, relevance = [], []
    for j, q in enumerate(queries):
        weights = [math.exp(sharpness * affinity[i][j]) for i in range(len(context))]
        weights = [w / sum(weights) for w in weights]
        attended = [dot(weights, [c[k] for c in context]) for k in range(len(q))]
        lengths = math.sqrt(dot(q, q)) * math.sqrt(dot(attended, attended))
        relevance.append(dot(q, attended) / lengths)
        attention.append(weights)
    if lse is None:
        return sum(relevance) / len(relevance), attention
    return math.log(sum(math.exp(lse * r) for r in relevance)) / lse, attention


@torch.no_grad()
@pytest.mark.parametrize(("direction", "aggregate"), FORMS)
@pytest.mark.parametrize("some_regions", [False, True])
def test_equals_a_loop_over_single_numbers(direction, aggregate, some_regions):
    model = scan(direction, aggregate)
    photos, captions, mask, region_mask = pairs()
    scores = model(photos, captions, mask, region_mask if some_regions else None)
    assert scores.logit.std() > 0.05, "a test on constant scores would prove nothing"
    assert scores.word_gates is None and scores.region_gates is None
    to_regions = direction == "t2i"
    assert (scores.word_attention is not None) == to_regions
    assert (scores.region_attention is not None) == (not to_regions)
    sharpness = 9.0 if to_regions else 4.0
    lse = {"mean": None, "lse": 6.0 if to_regions else 5.0}[aggregate]
    for p, c in itertools.product(range(3), range(4)):
        size = REGIONS[p] if some_regions else 6
        regions, words = photos[p, :size].tolist(), captions[c, : LENGTHS[c]].tolist()
        queries, context = (words, regions) if to_regions else (regions, words)
        score, attention = reference(queries, context, sharpness, lse)
        assert scores.logit[p, c].item() == pytest.approx(score, abs=1e-5)
        ours = scores.word_attention if to_regions else scores.region_attention
        ours = ours[p, c, : len(queries)]
        expected = torch.tensor(attention)
        torch.testing.assert_close(ours[:, : len(context)], expected, atol=1e-5, rtol=0)
        assert (ours[:, len(context) :] == 0).all()


@torch.no_grad()
@pytest.mark.parametrize(("direction", "aggregate"), FORMS)
def test_padding_never_changes_a_score(direction, aggregate):
    model = scan(direction, aggregate)
    photos, captions, mask, region_mask = pairs()
    expected = model(photos, captions, mask, region_mask).logit

    def padded(x, mask, count):
        x = torch.cat([x, torch.full((len(x), count, 16), 0.7)], dim=1)
        return x, torch.cat([mask, torch.zeros(len(x), count, dtype=torch.bool)], dim=1)

    longer, longer_mask = padded(captions, mask, 3)
    more, more_mask = padded(photos, region_mask, 2)
    torch.testing.assert_close(model(more, longer, longer_mask, more_mask).logit, expected)
    ignoring = model(more, longer, torch.ones_like(longer_mask), more_mask).logit
    assert (ignoring - expected).abs().max() > 1e-2, "a missing word mask must be seen"
    ignoring = model(more, longer, longer_mask).logit
    assert (ignoring - expected).abs().max() > 1e-2, "a missing region mask must be seen"


@torch.no_grad()
@pytest.mark.parametrize(("direction", "aggregate"), FORMS)
def test_order_and_groups_change_nothing(direction, aggregate):
    model = scan(direction, aggregate)
    photos, captions, mask, region_mask = pairs()
    expected = model(photos, captions, mask, region_mask).logit
    p, c = torch.tensor([2, 0, 1]), torch.tensor([3, 1, 0, 2])
    groups = (
        torch.stack([photos, photos[p]]),
        torch.stack([captions, captions[c]]),
        torch.stack([mask, mask[c]]),
        torch.stack([region_mask, region_mask[p]]),
    )
    grouped = model(*groups)
    torch.testing.assert_close(grouped.logit[0], expected)
    torch.testing.assert_close(grouped.logit[1], expected[p][:, c])
    attention = grouped.word_attention if direction == "t2i" else grouped.region_attention
    positions = (5, 6) if direction == "t2i" else (6, 5)
    assert attention.shape == (2, 3, 4, *positions)


@torch.no_grad()
def test_sides_have_unit_length_and_keep_the_mask():
    model = scan("t2i", "lse")
    photos = model.photo_side(torch.randn(2, 6, 1400))
    pieces = torch.zeros(3, 2, 4)
    pieces[:, 0, 1] = pieces[:2, 1, 2] = 1.0
    captions, mask = model.caption_side(
        torch.randn(3, 4, 384), torch.ones(3, 4, dtype=torch.bool), pieces
    )
    assert photos.shape == (2, 6, model.side_width) and captions.shape == (3, 2, model.side_width)
    torch.testing.assert_close(photos.norm(dim=-1), torch.ones(2, 6))
    torch.testing.assert_close(captions.norm(dim=-1), torch.ones(3, 2))
    assert mask.tolist() == [[True, True], [True, True], [True, False]]


@pytest.mark.parametrize(("direction", "aggregate"), FORMS)
def test_gradients(direction, aggregate):
    model = scan(direction, aggregate).double()
    photos, captions, mask, region_mask = pairs(torch.float64)
    photos, captions = photos[:2, :3].requires_grad_(), captions[1:3, :3].requires_grad_()
    masks = mask[1:3, :3], torch.tensor([[True, True, False], [True, True, True]])

    def logits(photos, captions):
        return model(photos, captions, *masks).logit

    assert torch.autograd.gradcheck(logits, (photos, captions))


def test_gradients_are_finite_where_a_position_is_zero():
    for direction, aggregate in FORMS:
        photos, captions, mask, region_mask = pairs()
        photos, captions = photos * region_mask[..., None], captions * mask[..., None]
        inputs = photos.requires_grad_(), captions.requires_grad_()
        logit = scan(direction, aggregate)(*inputs, mask, region_mask).logit
        for gradient in torch.autograd.grad(logit.sum(), inputs):
            assert gradient.isfinite().all()


class LogitAndAttention(torch.nn.Module):
    def __init__(self, model: Scan) -> None:
        super().__init__()
        self.model = model

    def forward(self, photos, captions, mask, region_mask):
        scores = self.model(photos, captions, mask, region_mask)
        return scores.logit, scores.word_attention if scores[1] is not None else scores[2]


@torch.no_grad()
@pytest.mark.parametrize(("direction", "aggregate"), [("t2i", "lse"), ("i2t", "mean")])
def test_exported_graph(direction, aggregate):
    module = LogitAndAttention(scan(direction, aggregate))
    photos, captions, mask, region_mask = pairs()
    p, r, c, n = (dimension(name) for name in "prcn")
    shapes = ({0: p, 1: r}, {0: c, 1: n}, {0: c, 1: n}, {0: p, 1: r})
    names = ["photos", "captions", "mask", "region_mask"]
    example = photos, captions, mask, region_mask
    session = exported_session(module, example, shapes, names, ["logit", "attention"])
    for inputs in (
        (photos[:1], captions[:2, :3], mask[:2, :3], region_mask[:1]),
        (photos[:2, :4], captions[2:3, :1], mask[2:3, :1], region_mask[:2, :4]),
        example,
    ):
        expected = module(*inputs)
        for ours, theirs in zip(run(session, *inputs), expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(ours), theirs, atol=1e-5, rtol=1e-5)
    assert expected[0].std() > 0.05


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("aggregate", ["lse", "mean"])
@torch.no_grad()
def test_gram_matrices_give_the_scores_of_attended_vectors(direction, aggregate):
    model = scan(direction, aggregate)
    generator = torch.Generator().manual_seed(3)
    width = model.config.dimension
    photos, captions = (torch.randn(n, s, width, generator=generator) for n, s in ((3, 5), (4, 6)))
    expected = model.score_plainly(photos, captions)
    found = model(photos, captions, torch.ones(4, 6, dtype=torch.bool)).logit
    assert expected.std() > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_unknown_settings_are_named():
    with pytest.raises(ValueError, match="direction is 'both'"):
        Scan(ScanConfig(direction="both"))
    with pytest.raises(ValueError, match="aggregate is 'sum'"):
        Scan(ScanConfig(aggregate="sum"))
