"""DivE against plain loops, its masking and the authors', gradients, and its graphs."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from matching.config import DiveConfig
from matching.models.dive import SIMILARITIES, Dive
from matching.models.set_prediction import PredictedSet, SetPrediction
from matching.similarity import Similarity
from tests.matching.onnx_parity import dimension, exported_session, run

TINY = DiveConfig(
    dimension=6,
    slots=3,
    iterations=3,
    heads=2,
    head_dimension=4,
    feed_forward=5,
    dropout=0.1,
)
SMALL = dataclasses.replace(
    TINY,
    iterations=2,
    dimension=16,
    hidden=8,
    region_encoder="residual_mlp",
    region_channels=12,
    word_encoder="bigru",
    vocabulary_size=20,
    word_dimension=10,
)
WORD_IDS = torch.tensor([[1, 7, 9, 4, 2], [1, 5, 2, 0, 0], [1, 12, 13, 2, 0]])


def lively(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """In evaluation, with weights wide enough for the attention to differ among the slots."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            wide = 1.0 if parameter.ndim < 2 or "slots" in name else 3 / parameter.shape[1] ** 0.5
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.copy_(wide * noise + (1.0 if name.endswith("norm.weight") else 0.0))
    return module.eval()


def inputs(width: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Contexts of 5, 2 and 4 members, global features, mask."""
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(3, 5, width, generator=generator, dtype=torch.float64)
    global_feature = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    mask = torch.arange(5)[None] < torch.tensor([5, 2, 4])[:, None]
    return context, global_feature, mask


# The slow reference: one photo or caption, lists of numbers.


def plain_linear(x: list[float], weight: torch.Tensor, bias: torch.Tensor | None) -> list[float]:
    added = bias.tolist() if bias is not None else [0.0] * len(weight)
    rows = zip(weight.tolist(), added, strict=True)
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in rows]


def plain_norm(x: list[float], norm: torch.nn.LayerNorm) -> list[float]:
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + 1e-5)
    parts = zip(x, norm.weight.tolist(), norm.bias.tolist(), strict=True)
    return [(v - mean) / deviation * w + b for v, w, b in parts]


def plain_position(place: int, length: int, width: int) -> list[float]:
    angle = place / (length + 1e-6) * 2 * math.pi
    code = []
    for i in range(width):
        turn = angle / 10000 ** (2 * (i // 2) / width)
        code.append(math.cos(turn) if i % 2 else math.sin(turn))
    return code


def plain_attention(
    module: SetPrediction,
    slots: list[list[float]],
    keyed: list[list[float]],
    context: list[list[float]],
    valid: int,
    compat: bool,
) -> tuple[list[list[float]], list[list[list[float]]]]:
    """-> what moves each slot, weights by head, slot and input."""
    attention, size = module.attention, module.attention.head_dimension
    queries = [plain_linear(s, attention.query.weight, None) for s in slots]
    keys = [plain_linear(c, attention.key.weight, None) for c in keyed]
    values = [plain_linear(c, attention.value.weight, None) for c in context]
    gathered: list[list[float]] = [[] for _ in slots]
    maps = []
    for head in range(attention.heads):
        part = range(head * size, (head + 1) * size)
        share = [[0.0] * len(context) for _ in slots]
        for j, key in enumerate(keys):
            exponentials = [math.exp(sum(q[d] * key[d] for d in part) / size**0.5) for q in queries]
            for i, exponential in enumerate(exponentials):
                if j < valid:
                    share[i][j] = exponential / sum(exponentials)
                elif compat:
                    share[i][j] = 1 / len(slots)
        weights = [[w / (sum(row) + 1e-7) for w in row] for row in share]
        for i, row in enumerate(weights):
            for d in part:
                gathered[i].append(sum(w * v[d] for w, v in zip(row, values, strict=True)))
        maps.append(weights)
    output = attention.output
    return [plain_linear(g, output.weight, output.bias) for g in gathered], maps


def plain_gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def plain_sum(x: list[float], y: list[float]) -> list[float]:
    return [a + b for a, b in zip(x, y, strict=True)]


def plain_unit(x: list[float]) -> list[float]:
    return [v / math.hypot(*x) for v in x]


def plain_set(
    module: SetPrediction,
    context: torch.Tensor,
    global_feature: torch.Tensor,
    valid: int,
    compat: bool,
) -> PredictedSet:
    """context (N, C) of which `valid` are true, global_feature (D,)."""
    normed = [plain_norm(c, module.context_norm) for c in context.tolist()]
    keyed, width = normed, context.shape[1]
    if module.positions is not None:
        length = len(normed) if compat else valid
        codes = [plain_position(j + 1, length, width) for j in range(len(normed))]
        keyed = [plain_sum(*two) for two in zip(normed, codes, strict=True)]
    slots = module.slots.tolist()
    widen, narrow = module.feed_forward[0], module.feed_forward[3]
    maps = []
    for _ in range(module.iterations):
        queried = [plain_norm(s, module.slot_norm) for s in slots]
        moved, weights = plain_attention(module, queried, keyed, normed, valid, compat)
        maps.append(weights)
        for i, slot in enumerate(slots):
            slot = plain_sum(slot, moved[i])
            hidden = plain_linear(
                plain_norm(slot, module.feed_forward_norm), widen.weight, widen.bias
            )
            further = plain_linear([plain_gelu(h) for h in hidden], narrow.weight, narrow.bias)
            slots[i] = plain_sum(slot, further)
    slots = [plain_norm(s, module.output_norm) for s in slots]
    whole = plain_norm(global_feature.tolist(), module.global_norm)
    embeddings = [plain_unit(plain_sum(s, whole)) for s in slots]
    parts = embeddings, [plain_unit(s) for s in slots], maps
    return PredictedSet(*(torch.tensor(part, dtype=torch.float64) for part in parts))


def assert_sets_close(found: PredictedSet, expected: PredictedSet, atol: float) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), atol=atol, rtol=0)


def of_row(sets: PredictedSet, row: int, valid: int) -> PredictedSet:
    """One set, its attention over the true inputs alone."""
    embeddings, slots, attention = (part[row].detach() for part in sets)
    return PredictedSet(embeddings, slots, attention[..., :valid])


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_matches_plain_loops_in_all_iterations(compat, positions):
    config = dataclasses.replace(TINY, compat=compat)
    module = lively(SetPrediction(config, 8, positions).double())
    context, global_feature, mask = inputs(8)
    sets = module(context, global_feature, mask)
    assert sets.attention.shape == (3, 3, 2, 3, 5)  # B, iterations, heads, slots, inputs
    assert sets.attention.std() > 0.05
    for row, valid in enumerate((5, 2, 4)):
        expected = plain_set(module, context[row], global_feature[row], valid, compat)
        assert_sets_close(of_row(sets, row, 5), expected, atol=1e-6)
    in_single = module.float()(context.float(), global_feature.float(), mask)
    assert_sets_close(in_single, sets, atol=1e-5)


def test_no_mask_is_a_mask_of_ones():
    module = lively(SetPrediction(TINY, 8, positions=True).double())
    context, global_feature, mask = inputs(8)
    whole = module(context, global_feature)
    assert_sets_close(whole, module(context, global_feature, torch.ones_like(mask)), atol=1e-12)


def test_weights_of_each_slot_sum_to_one_inside_the_mask():
    module = lively(SetPrediction(TINY, 8, positions=True).double())
    context, global_feature, mask = inputs(8)
    attention = module(context, global_feature, mask).attention
    # Not quite 1 where a slot has almost no share of anything.
    sums = attention.sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), atol=1e-2, rtol=0)
    hidden = ~mask[:, None, None, None, :].expand_as(attention)
    assert (attention[hidden] == 0).all()


@pytest.mark.parametrize("positions", [False, True])
def test_padding_changes_nothing_except_in_compat(positions):
    context, global_feature, mask = inputs(8)
    padded = torch.cat([context, torch.full((3, 4, 8), 7.0).double()], dim=1)
    padded[:, 6:, 2] = -30.0
    padded_mask = torch.cat([mask, torch.zeros(3, 4, dtype=torch.bool)], dim=1)
    module = lively(SetPrediction(TINY, 8, positions).double())
    expected = module(context, global_feature, mask)
    found = module(padded, global_feature, padded_mask)
    found = found._replace(attention=found.attention[..., :5])
    assert_sets_close(found, expected, atol=1e-12)
    # The authors' masking lets padding in: each set depends on the batch that it is in.
    config = dataclasses.replace(TINY, compat=True)
    authors = SetPrediction(config, 8, positions).double().eval()
    authors.load_state_dict(module.state_dict())
    short = authors(context[1:2, :2], global_feature[1:2], mask[1:2, :2])
    assert_sets_close(of_row(short, 0, 2), of_row(expected, 1, 2), atol=1e-12)
    for sets in (
        authors(context, global_feature, mask),
        authors(padded, global_feature, padded_mask),
    ):
        cosines = (sets.embeddings[1] * short.embeddings[0]).sum(-1)
        assert cosines.min() < 0.99
        assert sets.attention[1, ..., 2:].min() > 0


def test_gradients():
    config = dataclasses.replace(TINY, slots=2, iterations=2)
    module = lively(SetPrediction(config, 4, positions=True).double())
    context, global_feature, mask = (part[1:] for part in inputs(4))  # of 2 and 4 members

    def of_inputs(context, global_feature, slots):
        values = (context, global_feature, mask)
        return torch.func.functional_call(module, {"slots": slots}, values)

    leaves = [x.detach().clone().requires_grad_() for x in (context, global_feature, module.slots)]
    assert torch.autograd.gradcheck(of_inputs, leaves)


def test_every_weight_learns():
    for similarity in SIMILARITIES:
        model = Dive(dataclasses.replace(SMALL, similarity=similarity)).train()
        photos = model.embed_photos(torch.randn(3, 4, 12))
        scores = model.similarity(photos, model.embed_captions(WORD_IDS))
        scores.mul(torch.randn(3, 3)).sum().backward()
        without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert without == ["log_scale"]  # of the contrastive loss


# The whole system.


def plain_gru(gru: torch.nn.GRU, words: list[torch.Tensor]) -> torch.Tensor:
    """The last state, word by word."""
    state = torch.zeros(gru.hidden_size, dtype=torch.float64)
    for word in words:
        given = gru.weight_ih_l0 @ word + gru.bias_ih_l0
        kept = gru.weight_hh_l0 @ state + gru.bias_hh_l0
        reset, update, new = zip(given.chunk(3), kept.chunk(3), strict=True)
        gate = torch.sigmoid(update[0] + update[1])
        candidate = torch.tanh(new[0] + torch.sigmoid(reset[0] + reset[1]) * new[1])
        state = (1 - gate) * candidate + gate * state
    return state


@pytest.mark.parametrize("kind", ["bigru", "gru"])
def test_captions_of_a_vocabulary(kind):
    model = lively(Dive(dataclasses.replace(SMALL, word_encoder=kind)).double())
    with torch.no_grad():
        sets = model.caption_set(WORD_IDS)
        for row, valid in enumerate((5, 3, 4)):
            words = [model.text.embed.weight[i] for i in WORD_IDS[row, :valid]]
            state = plain_gru(model.text.forward_gru, words)
            if kind == "bigru":
                state = (state + plain_gru(model.text.backward_gru, words[::-1])) / 2
            expected = plain_set(model.word_set, torch.stack(words), state, valid, compat=False)
            assert_sets_close(of_row(sets, row, valid), expected, atol=1e-6)


def test_photos_with_dropped_regions():
    model = lively(Dive(SMALL).double())
    regions = torch.randn(3, 5, 12, generator=torch.Generator().manual_seed(5)).double()
    mask = torch.arange(5)[None] < torch.tensor([5, 2, 4])[:, None]
    with torch.no_grad():
        sets = model.photo_set(regions, mask)
        for row, valid in enumerate((5, 2, 4)):
            local = model.regions(regions[row : row + 1, :valid])[0]
            largest = [max(local[:, d].tolist()) for d in range(16)]
            largest = torch.tensor(largest, dtype=torch.float64)
            expected = plain_set(model.region_set, local, largest, valid, compat=False)
            assert_sets_close(of_row(sets, row, valid), expected, atol=1e-6)


def minilm_captions(seed: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three captions of 5, 2 and 4 words, a piece each, between two special pieces."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([5, 2, 4])
    word_pieces = torch.zeros(3, 5, 7)
    for row, length in enumerate(lengths.tolist()):
        word_pieces[row, range(length), range(1, length + 1)] = 1
    piece_mask = torch.arange(7)[None] < lengths[:, None] + 2
    return torch.randn(3, 7, 384, generator=generator), piece_mask, word_pieces


@pytest.mark.parametrize("encoder", ["minilm", "bigru"])
def test_padding_and_order_of_the_batch_change_no_embedding(encoder):
    changes = {"word_encoder": encoder}
    model = Dive(dataclasses.replace(SMALL, **changes)).eval()
    captions = (WORD_IDS,) if encoder == "bigru" else minilm_captions()
    if encoder == "bigru":
        more = (torch.nn.functional.pad(WORD_IDS, (0, 3)),)
    else:
        hidden, piece_mask, word_pieces = captions
        pad = torch.nn.functional.pad
        more = (
            pad(hidden, (0, 0, 0, 2), value=9.0),
            pad(piece_mask, (0, 2)),
            pad(word_pieces, (0, 2, 0, 3)),
        )
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        embeddings = model.embed_captions(*captions)
        assert embeddings.shape == (3, model.embedding_width) == (3, 48)
        padded = model.embed_captions(*more)
        torch.testing.assert_close(padded, embeddings, atol=1e-5, rtol=0)
        turned = model.embed_captions(*(part[order] for part in captions))
        torch.testing.assert_close(turned, embeddings[order], atol=1e-5, rtol=0)
        authors = Dive(dataclasses.replace(SMALL, compat=True, **changes)).eval()
        authors.load_state_dict(model.state_dict())
        moved = authors.embed_captions(*more) - authors.embed_captions(*captions)
        assert moved.abs().amax(1).min() > 1e-3  # even of the longest caption

        regions = torch.randn(3, 4, 12)
        photos = model.embed_photos(regions)
        torch.testing.assert_close(model.embed_photos(regions[order]), photos[order])
        mask = torch.tensor([[True] * 4 + [False] * 2] * 3)
        hidden_regions = torch.cat([regions, torch.full((3, 2, 12), 50.0)], dim=1)
        masked = model.embed_photos(hidden_regions, mask)
        torch.testing.assert_close(masked, photos, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_an_engine_compares_as_the_system_does(kind):
    model = Dive(dataclasses.replace(SMALL, similarity=kind, alpha=12.0)).eval()
    learnt = {name for name, _ in model.named_parameters()} & {"scale", "shift"}
    assert learnt == ({"scale", "shift"} if kind == "mean_probability" else set())
    with torch.no_grad():
        if learnt:
            model.scale.fill_(4.0)
            model.shift.fill_(-1.5)
        photos = model.embed_photos(torch.randn(4, 5, 12))
        captions = model.embed_captions(WORD_IDS)
        expected = model.similarity(photos, captions).numpy()
        groups = model.similarity(photos.unflatten(0, (2, 2)), captions.expand(2, 3, 48))
    similarity = Similarity.from_json(model.similarity_settings())
    found = similarity(photos.numpy(), captions.numpy())
    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)
    np.testing.assert_allclose(groups.flatten(0, 1).numpy(), expected, atol=1e-6, rtol=0)


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="'cosine'.*smooth_chamfer"):
        Dive(dataclasses.replace(SMALL, similarity="cosine"))
    with pytest.raises(ValueError, match="even width, got 9"):
        Dive(dataclasses.replace(SMALL, word_dimension=9))


class Graph(torch.nn.Module):
    """What is exported: the embedding and the attention of one side."""

    def __init__(self, model: Dive, side: str) -> None:
        super().__init__()
        self.model, self.side = model, side

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sets = getattr(self.model, self.side)(*values)
        return sets.embeddings.flatten(1), sets.attention


def assert_graph_agrees(graph: Graph, example: tuple, shapes: tuple, further: list[tuple]) -> None:
    names = [f"input{i}" for i in range(len(example))]
    # dynamic_shapes of *values are those of one tuple.
    session = exported_session(graph, example, (shapes,), names, ["set_embedding", "attention"])
    for values in [example, *further]:
        with torch.no_grad():
            expected = graph(*values)
        for found, part in zip(run(session, *values), expected, strict=True):
            assert found.shape == part.shape
            assert part.std() > 0.05
            np.testing.assert_allclose(found, part.numpy(), atol=5e-5, rtol=0)


def test_graph_of_captions():
    model = lively(Dive(SMALL))
    batch, words = dimension("batch"), dimension("words")
    longer = torch.tensor([[1, 3, 4, 5, 6, 7, 8, 2], [1, 9, 2, 0, 0, 0, 0, 0]])
    assert_graph_agrees(
        Graph(model, "caption_set"),
        (WORD_IDS,),
        ({0: batch, 1: words},),
        [(longer,), (longer[1:, :3],), (longer[1:],)],
    )


def test_graph_of_minilm_captions():
    model = Dive(dataclasses.replace(SMALL, word_encoder="minilm")).eval()
    lively(model.word_set)
    batch, words, pieces = (dimension(name) for name in ("batch", "words", "pieces"))
    example = minilm_captions()
    shapes = ({0: batch, 1: pieces}, {0: batch, 1: pieces}, {0: batch, 1: words, 2: pieces})
    two = tuple(part[:2] for part in minilm_captions(seed=4))
    cut = (two[0][1:, :4], two[1][1:, :4], two[2][1:, :2, :4])
    assert_graph_agrees(Graph(model, "caption_set"), example, shapes, [two, cut])


def test_graph_of_photos():
    model = lively(Dive(SMALL))
    shapes = ({0: dimension("batch"), 1: dimension("regions")},)
    photos = [(torch.randn(*size, 12),) for size in ((3, 5), (2, 7), (1, 2))]
    assert_graph_agrees(Graph(model, "photo_set"), photos[0], shapes, photos[1:])
