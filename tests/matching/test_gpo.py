"""GPO and its designs against plain loops over sets, ranks and dimensions."""

import math

import pytest
import torch

from matching.config import VseInfinityConfig
from matching.models.gpo import GeneralizedPooling
from matching.models.pooling import make_pooling
from tests.matching.onnx_parity import dimension, exported_session, run

D = 5
# positions, generator, per dimension, features
DESIGNS = [
    ("cos_sin", "bigru", False, False),
    ("index", "bigru", False, False),
    ("cos_sin", "mlp", False, False),
    ("cos_sin", "transformer", False, False),
    ("cos_sin", "interpolation", False, False),
    ("cos_sin", "bigru", True, False),
    ("index", "interpolation", True, False),
    ("cos_sin", "bigru", False, True),
    ("index", "mlp", True, True),
    ("cos_sin", "transformer", False, True),
]


def pooling_of(design: tuple, largest_set: int = 9) -> GeneralizedPooling:
    positions, generator, per_dimension, features = design
    config = VseInfinityConfig(
        dimension=D,
        pooling_positions=positions,
        pooling_generator=generator,
        pooling_per_dimension=per_dimension,
        pooling_features=features,
    )
    torch.manual_seed(3)
    pooling = make_pooling("gpo", config, largest_set)
    for parameter in pooling.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return pooling.eval()


def softmax(values: list[float]) -> list[float]:
    top = max(values)
    exponents = [math.exp(value - top) for value in values]
    return [e / sum(exponents) for e in exponents]


def encodings(pooling: GeneralizedPooling, size: int) -> torch.Tensor:
    if pooling.index is not None:
        return pooling.index.weight[:size]
    encoding = torch.zeros(size, 32)
    for position in range(size):
        for i in range(16):
            angle = position * 10000 ** (-2 * i / 32)
            encoding[position, 2 * i] = math.sin(angle)
            encoding[position, 2 * i + 1] = math.cos(angle)
    return encoding


def bigru_states(pooling: GeneralizedPooling, inputs: torch.Tensor) -> torch.Tensor:
    both = torch.nn.GRU(32, 32, bidirectional=True, batch_first=True)
    own = pooling.state_dict()
    both.load_state_dict(
        {
            **{n[12:]: t for n, t in own.items() if n.startswith("forward_gru.")},
            **{f"{n[13:]}_reverse": t for n, t in own.items() if n.startswith("backward_gru.")},
        },
    )
    states, _ = both(inputs[None])
    return (states[0, :, :32] + states[0, :, 32:]) / 2


def transformer_states(pooling: GeneralizedPooling, inputs: torch.Tensor) -> torch.Tensor:
    """A torch encoder layer with the same weights."""
    layer = torch.nn.TransformerEncoderLayer(32, 4, 128, 0.0, "gelu", 1e-12, batch_first=True)
    own = {n[6:]: t for n, t in pooling.state_dict().items() if n.startswith("layer.")}
    names = {"self_attn.out_proj": "output", "linear1": "widen", "linear2": "narrow"}
    names |= {"norm1": "attention_norm", "norm2": "output_norm"}
    state = {f"{a}.{k}": own[f"{b}.{k}"] for a, b in names.items() for k in ("weight", "bias")}
    for kind in ("weight", "bias"):
        parts = [own[f"{name}.{kind}"] for name in ("query", "key", "value")]
        state[f"self_attn.in_proj_{kind}"] = torch.cat(parts)
    layer.load_state_dict(state)
    return layer(inputs[None])[0]  # in training mode, so that torch takes its plain path


def interpolated(knots: list[float], size: int) -> list[float]:
    """Knots, softmaxed, at evenly spread places of 0 .. 20; then they sum to one."""
    knots, stretched = softmax(knots), []
    for position in range(size):
        place = position / max(size - 1, 1) * 20
        below = min(int(place + 1e-9), 19)
        stretched.append(knots[below] + (place - below) * (knots[below + 1] - knots[below]))
    return [value / sum(stretched) for value in stretched]


def plain_coefficients(
    pooling: GeneralizedPooling,
    generator: str,
    ranked: torch.Tensor,
) -> list[list[float]]:
    """One list of coefficients for each set of outputs; ranked (n, D)."""
    size = ranked.shape[0]
    if generator == "interpolation":
        return [interpolated(knots, size) for knots in pooling.knots.T.tolist()]
    inputs = encodings(pooling, size)
    if pooling.mix is not None:
        inputs = torch.stack(
            [pooling.mix(torch.cat([inputs[k], ranked[k]])) for k in range(size)],
        )
    if generator == "mlp":
        hidden = (inputs @ pooling.hidden.weight.T + pooling.hidden.bias).clamp(min=0)
        return (hidden @ pooling.score.weight.T + pooling.score.bias).T.tolist()
    states = {"bigru": bigru_states, "transformer": transformer_states}[generator]
    scores = states(pooling, inputs) @ pooling.score.weight.T  # (n, outputs)
    return [softmax([score / 0.1 for score in column]) for column in scores.T.tolist()]


def plain_pooling(pooling: GeneralizedPooling, generator: str, members: torch.Tensor):
    """members (n, D): one set without padding."""
    columns = [sorted(column, reverse=True) for column in members.T.tolist()]
    ranked = torch.tensor(columns).T
    coefficients = plain_coefficients(pooling, generator, ranked)
    if len(coefficients) == 1:
        coefficients = coefficients * D
    return torch.tensor(
        [
            sum(w * v for w, v in zip(weights, values, strict=True))
            for weights, values in zip(coefficients, columns, strict=True)
        ],
    )


@pytest.mark.parametrize("design", DESIGNS)
def test_matches_a_plain_loop_at_every_size(design):
    pooling = pooling_of(design)
    features = torch.randn(9, 9, D)
    mask = torch.arange(9)[None] < torch.arange(1, 10)[:, None]
    with torch.no_grad():
        pooled = pooling(features, mask)
        for row in range(9):
            expected = plain_pooling(pooling, design[1], features[row, : row + 1])
            torch.testing.assert_close(pooled[row], expected, atol=1e-5, rtol=1e-5)
            whole = pooling(features[row : row + 1, : row + 1])[0]  # without a mask
            torch.testing.assert_close(whole, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("design", DESIGNS)
def test_padding_order_and_freezing_change_nothing(design):
    pooling = pooling_of(design, 12)
    features = torch.randn(2, 5, D)
    mask = torch.tensor([[True] * 5, [False, True, True, False, True]])
    padded = torch.cat([features, torch.full((2, 4, D), 1e3)], dim=1)
    padded_mask = torch.cat([mask, torch.zeros(2, 4, dtype=torch.bool)], dim=1)
    order = torch.randperm(9)
    with torch.no_grad():
        expected = pooling(features, mask)
        for _ in range(2):
            found = pooling(padded.flip(0)[:, order], padded_mask.flip(0)[:, order])
            torch.testing.assert_close(found.flip(0), expected, atol=1e-5, rtol=0)
            pooling.freeze()
    assert (pooling.frozen_table is None) == design[3]


def test_the_default_design_keeps_its_weights_names_and_count():
    state = GeneralizedPooling(36).state_dict()
    grus = [
        f"{g}_gru.{w}_l0"
        for g in ("forward", "backward")
        for w in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ]
    assert list(state) == [*grus, "score.weight"]
    assert sum(t.numel() for t in state.values()) == 12_704  # as the authors' module


@pytest.mark.parametrize("design", DESIGNS)
def test_gradients(design):
    pooling = pooling_of(design, 4).double()
    mask = torch.tensor([[True] * 4, [True, False, True, False]])
    features = torch.randn(2, 4, D, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: pooling(x, mask), (features,))


@pytest.mark.parametrize("design", [DESIGNS[0], DESIGNS[5], DESIGNS[7]])
def test_exports_with_parity_at_other_sizes(design):
    pooling = pooling_of(design)
    pooling.freeze()
    sizes = {0: dimension("sets"), 1: torch.export.Dim("members", min=1, max=9)}
    example = torch.randn(3, 4, D), torch.ones(3, 4, dtype=torch.bool)
    session = exported_session(pooling, example, (sizes, sizes), ["x", "mask"], ["pooled"])
    for sets, members in ((1, 2), (5, 9), (2, 7)):
        features = torch.randn(sets, members, D) * 3
        mask = torch.rand(sets, members) < 0.5
        mask[:, 1] = True
        with torch.no_grad():
            expected = pooling(features, mask)
        assert expected.std() > 0.5
        found = torch.from_numpy(run(session, features, mask)[0])
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_set_that_is_too_large_is_named():
    with pytest.raises(ValueError, match="a set of 10 members.*largest this model pools is 9"):
        GeneralizedPooling(9)(torch.zeros(2, 10, D))


def test_unknown_designs_are_named():
    with pytest.raises(ValueError, match="pooling_positions is 'rank'"):
        pooling_of(("rank", "bigru", False, False))
    with pytest.raises(ValueError, match="pooling_generator is 'lstm'"):
        pooling_of(("index", "lstm", False, False))
    with pytest.raises(ValueError, match="interpolation cannot read features"):
        pooling_of(("index", "interpolation", False, True))
