"""MMCA against loops over single numbers, and what padding and order must not change."""

import itertools
import math

import pytest
import torch

from matching.config import MmcaConfig
from matching.models.mmca import Mmca
from matching.models.projection import l2_normalised
from tests.matching.onnx_parity import dimension, exported_session, run

LENGTHS, REGIONS = [5, 3, 1, 2], [4, 6, 2]  # of captions, of photos
HEADS, DIMENSION = 4, 16
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture
def mmca() -> Mmca:
    torch.manual_seed(3)
    config = MmcaConfig(
        dimension=DIMENSION,
        hidden=16,
        dropout=0.0,
        heads=HEADS,
        feed_forward=12,
        filters=8,
        alpha=0.7,
    )
    model = Mmca(config).eval()
    with torch.no_grad():  # fresh weights score nearly everything alike: widen them
        for name, parameter in model.named_parameters():
            if "attention" in name or "head" in name:
                parameter.copy_(torch.randn(parameter.shape) * (0.5 if parameter.dim() > 1 else 1))
    return model


def sides(dtype=torch.float32):
    """What photo_side and caption_side make, with a unit vector at the first position."""
    generator = torch.Generator().manual_seed(4)
    photos = torch.randn(3, 1 + 6, DIMENSION, generator=generator, dtype=dtype)
    captions = torch.randn(4, 1 + 5, DIMENSION, generator=generator, dtype=dtype)
    for side in (photos, captions):
        side[:, 0] = l2_normalised(side[:, 0])
    mask = torch.arange(6)[None] < 1 + torch.tensor(LENGTHS)[:, None]
    region_mask = torch.arange(7)[None] < 1 + torch.tensor(REGIONS)[:, None]
    return photos, captions, mask, region_mask


def caption_inputs():
    """hidden (B, L, W), piece_mask, word_pieces (B, N, L): each word is two pieces, after [CLS]."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(4, 11, 384, generator=generator)
    word_pieces = torch.zeros(4, 5, 11)
    piece_mask = torch.zeros(4, 11, dtype=torch.bool)
    for row, length in enumerate(LENGTHS):
        piece_mask[row, : 1 + 2 * length] = True
        for word in range(length):
            word_pieces[row, word, 1 + 2 * word : 3 + 2 * word] = 0.5
    return hidden, piece_mask, word_pieces


def dot(a, b) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def linear(layer, x: list[float]) -> list[float]:
    rows, bias = layer.weight.tolist(), layer.bias.tolist()
    return [dot(row, x) + b for row, b in zip(rows, bias, strict=True)]


def layer_norm(layer, x: list[float]) -> list[float]:
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((a - mean) ** 2 for a in x) / len(x) + 1e-5)
    scale, bias = layer.weight.tolist(), layer.bias.tolist()
    return [(a - mean) / deviation * s + b for a, s, b in zip(x, scale, bias, strict=True)]


def unit(x: list[float]) -> list[float]:
    return [a / math.sqrt(dot(x, x)) for a in x]


def mean(rows: list[list[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def transformer(layer, rows):
    """A post-norm layer, position by position: rows, attention[head][query][key]."""
    width = DIMENSION // HEADS
    queries, keys, values = (
        [linear(f, x) for x in rows] for f in (layer.query, layer.key, layer.value)
    )
    attention, context = [], [[] for _ in rows]
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        attention.append([])
        for i, query in enumerate(queries):
            weights = [math.exp(dot(query[part], key[part]) / math.sqrt(width)) for key in keys]
            weights = [w / sum(weights) for w in weights]
            attention[-1].append(weights)
            context[i] += [
                dot(weights, [v[k] for v in values]) for k in range(part.start, part.stop)
            ]
    after = []
    for x, mixed in zip(rows, context, strict=True):
        x = [a + b for a, b in zip(x, linear(layer.output, mixed), strict=True)]
        x = layer_norm(layer.attention_norm, x)
        wide = [max(a, 0.0) for a in linear(layer.widen, x)]
        x = [a + b for a, b in zip(x, linear(layer.narrow, wide), strict=True)]
        after.append(layer_norm(layer.output_norm, x))
    return after, attention


def caption_head(head, rows) -> list[float]:
    """Windows of one, two and three words from each word on; zeros beyond the caption."""
    found = []
    for convolution in head.convolutions:
        weights, bias = convolution.weight.tolist(), convolution.bias.tolist()
        for filter_weights, filter_bias in zip(weights, bias, strict=True):
            best = 0.0
            for start in range(len(rows)):
                value = filter_bias
                for offset in range(len(filter_weights[0])):
                    if start + offset < len(rows):
                        column = [channel[offset] for channel in filter_weights]
                        value += dot(column, rows[start + offset])
                best = max(best, value)
            found.append(best)
    return linear(head.linear, found)


def attention_block(attention, queries: range, keys: range):
    """The mean over the heads, of some queries to some keys, each row made to sum to one."""
    block = [[sum(h[i][j] for h in attention) / len(attention) for j in keys] for i in queries]
    return torch.tensor([[a / sum(row) for a in row] for row in block])


@torch.no_grad()
@pytest.mark.parametrize("some_regions", [False, True])
def test_scores_equal_a_loop_over_single_numbers(mmca, some_regions):
    photos, captions, mask, region_mask = sides()
    scores = mmca(photos, captions, mask, region_mask if some_regions else None)
    assert scores.logit.std() > 0.2, "a test on constant scores would prove nothing"
    assert scores.word_attention[..., 0, :].std() > 0.05
    for p, c in itertools.product(range(3), range(4)):
        size, length = (REGIONS[p] if some_regions else 6), LENGTHS[c]
        stack = photos[p, 1 : 1 + size].tolist() + captions[c, 1 : 1 + length].tolist()
        rows, attention = transformer(mmca.cross_attention, stack)
        cross_photo = unit(mean(rows[:size]))
        cross_caption = unit(caption_head(mmca.cross_caption_head, rows[size:]))
        expected = dot(photos[p, 0].tolist(), captions[c, 0].tolist())
        expected += 0.7 * dot(cross_photo, cross_caption)
        assert scores.logit[p, c].item() == pytest.approx(expected, abs=1e-5)
        regions, words = range(size), range(size, size + length)
        expected = attention_block(attention, words, regions)
        torch.testing.assert_close(scores.word_attention[p, c, :length, :size], expected, **CLOSE)
        expected = attention_block(attention, regions, words)
        torch.testing.assert_close(scores.region_attention[p, c, :size, :length], expected, **CLOSE)
        assert (scores.region_attention[p, c, :, length:] == 0).all()
        assert (scores.word_attention[p, c, :, size:] == 0).all()


@torch.no_grad()
def test_pairs_equal_the_stack_itself(mmca):
    photos, captions, mask, _ = sides()
    scores = mmca(photos, captions, mask)
    for c, n in enumerate(LENGTHS):
        words, embedding = captions[c, 1 : 1 + n], captions[c, 0]
        expected = mmca.score_plainly(photos[:, 1:], photos[:, 0], words, embedding)
        attention = scores.word_attention[:, c, :n], scores.region_attention[:, c, :, :n]
        for a, b in zip((scores.logit[:, c], *attention), expected[:3], strict=True):
            torch.testing.assert_close(a, b, **CLOSE)


@torch.no_grad()
def test_embeddings_equal_a_loop_over_single_numbers(mmca):
    regions, region_mask = torch.randn(3, 6, 1400), sides()[3][:, 1:]
    projected = mmca.regions(regions)
    embedded, whole = mmca.embed_photos(regions, region_mask), mmca.embed_photos(regions)
    for p, size in enumerate(REGIONS):
        for ours, count in ((embedded, size), (whole, 6)):
            rows, _ = transformer(mmca.self_attention, projected[p, :count].tolist())
            torch.testing.assert_close(ours[p], torch.tensor(unit(mean(rows))), **CLOSE)
    words, _ = mmca.encode_words(*caption_inputs())
    embedded = mmca.embed_captions(*caption_inputs())
    for c, length in enumerate(LENGTHS):
        expected = unit(caption_head(mmca.caption_head, words[c, :length].tolist()))
        torch.testing.assert_close(embedded[c], torch.tensor(expected), **CLOSE)
    similarity = mmca.similarity(whole, embedded)
    assert similarity[1, 2].item() == pytest.approx(dot(whole[1].tolist(), embedded[2].tolist()))
    assert similarity.shape == (3, 4) and embedded.shape[1] == mmca.embedding_width


@torch.no_grad()
def test_sides_hold_the_embedding_and_then_the_positions(mmca):
    regions, region_mask = torch.randn(3, 6, 1400), sides()[3][:, 1:]
    photos = mmca.photo_side(regions, region_mask)
    assert photos.shape == (3, mmca.extra_positions + 6, mmca.side_width)
    torch.testing.assert_close(photos[:, 0], mmca.embed_photos(regions, region_mask))
    torch.testing.assert_close(photos[:, 1:], mmca.regions(regions))
    captions, mask = mmca.caption_side(*caption_inputs())
    assert captions.shape == (4, mmca.extra_positions + 5, mmca.side_width)
    torch.testing.assert_close(captions[:, 0], mmca.embed_captions(*caption_inputs()))
    assert mask.tolist() == sides()[2].tolist()


@torch.no_grad()
def test_padding_never_changes_a_score(mmca):
    photos, captions, mask, region_mask = sides()
    expected = mmca(photos, captions, mask, region_mask).logit

    def padded(side, mask, count):
        side = torch.cat([side, torch.full((len(side), count, DIMENSION), 3.0)], dim=1)
        return side, torch.cat([mask, torch.zeros(len(side), count, dtype=torch.bool)], dim=1)

    longer, longer_mask = padded(captions, mask, 3)
    more, more_mask = padded(photos, region_mask, 2)
    torch.testing.assert_close(mmca(more, longer, longer_mask, more_mask).logit, expected, **CLOSE)
    ignoring = mmca(more, longer, torch.ones_like(longer_mask), more_mask).logit
    assert (ignoring - expected).abs().max() > 1e-2, "a missing word mask must be seen"
    ignoring = mmca(more, longer, longer_mask).logit
    assert (ignoring - expected).abs().max() > 1e-2, "a missing region mask must be seen"


@torch.no_grad()
def test_padding_never_changes_an_embedding(mmca):
    hidden, piece_mask, word_pieces = caption_inputs()
    expected = mmca.embed_captions(hidden, piece_mask, word_pieces)
    for row, length in enumerate(LENGTHS):  # alone and cut to its length
        pieces = 1 + 2 * length
        alone = mmca.embed_captions(
            hidden[row : row + 1, :pieces],
            piece_mask[row : row + 1, :pieces],
            word_pieces[row : row + 1, :length, :pieces],
        )
        torch.testing.assert_close(alone[0], expected[row], **CLOSE)
    regions, region_mask = torch.randn(3, 6, 1400), sides()[3][:, 1:]
    expected = mmca.embed_photos(regions, region_mask)
    for row, size in enumerate(REGIONS):
        alone = mmca.embed_photos(regions[row : row + 1, :size])
        torch.testing.assert_close(alone[0], expected[row], **CLOSE)


@torch.no_grad()
def test_order_and_groups_change_nothing(mmca):
    photos, captions, mask, region_mask = sides()
    expected = mmca(photos, captions, mask, region_mask)
    p, c = torch.tensor([2, 0, 1]), torch.tensor([3, 1, 0, 2])
    groups = (
        torch.stack([photos, photos[p]]),
        torch.stack([captions, captions[c]]),
        torch.stack([mask, mask[c]]),
        torch.stack([region_mask, region_mask[p]]),
    )
    grouped = mmca(*groups)
    for ours, alone in zip(grouped[:3], expected[:3], strict=True):
        torch.testing.assert_close(ours[0], alone, **CLOSE)
        torch.testing.assert_close(ours[1], alone[p][:, c], **CLOSE)


def test_gradients(mmca):
    model = mmca.double()
    photos, captions, mask, region_mask = sides(torch.float64)
    photos, captions = photos[1:, :4].requires_grad_(), captions[1:3, :4].requires_grad_()
    masks = mask[1:3, :4], region_mask[1:, :4]

    def logits(photos, captions):
        return model(photos, captions, *masks).logit

    assert torch.autograd.gradcheck(logits, (photos, captions))
    weight = model.cross_attention.key.weight
    logits(photos, captions).sum().backward()
    assert weight.grad.abs().max() > 0 and weight.grad.isfinite().all()


class Scores(torch.nn.Module):
    def __init__(self, model: Mmca) -> None:
        super().__init__()
        self.model = model

    def forward(self, photos, captions, mask):
        return self.model(photos, captions, mask)[:3]


@torch.no_grad()
def test_exported_scorer(mmca):
    photos, captions, mask = example = sides()[:3]
    p, r, c, n = (dimension(name) for name in "prcn")
    shapes = ({0: p, 1: r}, {0: c, 1: n}, {0: c, 1: n})
    names = ["photos", "captions", "mask"]
    outputs = ["logit", "word_attention", "region_attention"]
    session = exported_session(Scores(mmca), example, shapes, names, outputs)
    for inputs in (
        (photos[:1], captions[:2, :4], mask[:2, :4]),
        (photos[:2, :5], captions[2:3, :2], mask[2:3, :2]),  # one word
        example,
    ):
        expected = mmca(*inputs)
        logit, word_attention, region_attention = map(torch.from_numpy, run(session, *inputs))
        torch.testing.assert_close(logit, expected.logit, **CLOSE)
        torch.testing.assert_close(region_attention, expected.region_attention, **CLOSE)
        inside = inputs[2][:, 1:]  # what is no word attends to anything
        theirs = expected.word_attention[:, inside]
        torch.testing.assert_close(word_attention[:, inside], theirs, **CLOSE)
    assert expected.logit.std() > 0.2


@torch.no_grad()
def test_exported_caption_head(mmca):
    words, mask = example = sides()[1][:, 1:], sides()[2][:, 1:]
    b, n = dimension("b"), dimension("n")
    shapes = ({0: b, 1: n}, {0: b, 1: n})
    head = mmca.caption_head
    session = exported_session(head, example, shapes, ["words", "mask"], ["caption"])
    for inputs in (example, (words[2:3, :1], mask[2:3, :1]), (words[:2, :4], mask[:2, :4])):
        (ours,) = run(session, *inputs)
        torch.testing.assert_close(torch.from_numpy(ours), head(*inputs), **CLOSE)
    assert head(*example).std() > 0.2


def test_heads_must_divide_the_dimension():
    with pytest.raises(ValueError, match="multiple of heads, 16"):
        Mmca(MmcaConfig(dimension=40))
