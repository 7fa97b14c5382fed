"""Region encoders against loops over regions, written from the papers."""

import math

import pytest
import torch

from matching.config import EncoderConfig
from matching.models.region_encoders import make_region_encoder
from tests.matching.onnx_parity import dimension, exported_session, run

CHANNELS, HIDDEN, D = 10, 12, 8


def encoder_of(kind: str) -> torch.nn.Module:
    config = EncoderConfig(
        dimension=D,
        hidden=HIDDEN,
        dropout=0.3,
        region_encoder=kind,
        region_channels=CHANNELS,
    )
    torch.manual_seed(7)
    encoder = make_region_encoder(config)
    for module in encoder.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            torch.nn.init.uniform_(module.weight, 0.5, 2.0)
            torch.nn.init.normal_(module.bias)
            torch.nn.init.normal_(module.running_mean)
            torch.nn.init.uniform_(module.running_var, 0.5, 2.0)
    return encoder.eval()


def affine(weights: dict, name: str, row: list[float]) -> list[float]:
    matrix, bias = weights[f"{name}.weight"].tolist(), weights[f"{name}.bias"].tolist()
    return [
        sum(w * x for w, x in zip(m, row, strict=True)) + b
        for m, b in zip(matrix, bias, strict=True)
    ]


def plain_mlp(weights: dict, row: list[float]) -> list[float]:
    normed = []
    for i, value in enumerate(affine(weights, "mlp.widen", row)):
        norm = {n: weights[f"mlp.norm.{n}"][i].item() for n in ("weight", "bias")}
        mean, var = (weights[f"mlp.norm.running_{n}"][i].item() for n in ("mean", "var"))
        value = (value - mean) / math.sqrt(var + 1e-5) * norm["weight"] + norm["bias"]
        normed.append(max(value, 0.0))
    return affine(weights, "mlp.narrow", normed)


def plain_encoding(kind: str, weights: dict, row: list[float]) -> list[float]:
    linear = affine(weights, "linear", row)
    if kind == "linear":
        return linear
    beside = plain_mlp(weights, row if kind == "linear_mlp" else linear)
    return [a + b for a, b in zip(linear, beside, strict=True)]


@pytest.mark.parametrize("kind", ["linear", "linear_mlp", "residual_mlp"])
def test_matches_a_loop_over_regions(kind):
    encoder = encoder_of(kind)
    features = torch.randn(2, 3, CHANNELS)
    with torch.no_grad():
        encoded = encoder(features)
    for photo in range(2):
        for region in range(3):
            row = features[photo, region].tolist()
            expected = torch.tensor(plain_encoding(kind, encoder.state_dict(), row))
            torch.testing.assert_close(encoded[photo, region], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["linear_mlp", "residual_mlp"])
def test_batch_norm_trains_on_all_regions_as_rows(kind):
    encoder = encoder_of(kind).train()
    norm = encoder.mlp.norm
    norm.momentum = 1.0  # the running mean is then the mean of this batch
    seen = []
    norm.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    features = torch.randn(4, 5, CHANNELS)
    encoder(features)
    assert seen[0].shape == (20, HIDDEN)
    torch.testing.assert_close(norm.running_mean, seen[0].mean(0))


@pytest.mark.parametrize("kind", ["linear", "linear_mlp", "residual_mlp"])
def test_gradients(kind):
    encoder = encoder_of(kind).double()
    features = torch.randn(2, 3, CHANNELS, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(encoder, (features,))


def test_exports_with_parity_at_other_sizes():
    # DivE's encoder has every part that VSE-infinity's has.
    encoder = encoder_of("residual_mlp")
    shapes = ({0: dimension("photos"), 1: dimension("regions")},)
    example = (torch.randn(3, 4, CHANNELS),)
    session = exported_session(encoder, example, shapes, ["regions"], ["encoded"])
    for photos, regions in ((1, 6), (5, 2)):
        features = torch.randn(photos, regions, CHANNELS) * 3
        with torch.no_grad():
            expected = encoder(features)
        assert expected.std() > 0.5
        found = torch.from_numpy(run(session, features)[0])
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_linear_starts_as_in_the_authors_code():
    torch.manual_seed(2)
    encoder = make_region_encoder(
        EncoderConfig(dimension=64, region_encoder="linear", region_channels=128),
    )
    bound = math.sqrt(6 / (64 + 128))
    assert 0.98 * bound < encoder.linear.weight.abs().max() <= bound
    assert encoder.linear.bias.abs().max() == 0


@pytest.mark.parametrize("kind", ["taps", "linear", "linear_mlp", "residual_mlp"])
def test_a_wrong_width_is_named(kind):
    channels = 1400 if kind == "taps" else 2048
    encoder = make_region_encoder(
        EncoderConfig(dimension=D, hidden=HIDDEN, region_encoder=kind, region_channels=channels),
    )
    with pytest.raises(ValueError, match=f"width 77, the model expects {channels}"):
        encoder(torch.zeros(2, 3, 77))


def test_settings_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="region_channels is 2048.*1400"):
        make_region_encoder(EncoderConfig(region_channels=2048))
    with pytest.raises(ValueError, match="region_encoder is 'conv'.*residual_mlp"):
        make_region_encoder(EncoderConfig(region_encoder="conv"))
