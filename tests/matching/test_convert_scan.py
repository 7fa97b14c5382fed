"""Checkpoints of SCAN and VSE++, and what is said of VSRN's."""

import json

import pytest
import torch
from torch.nn.functional import leaky_relu, linear, normalize

from matching.checkpoint import load_checkpoint
from matching.command import run_command
from matching.convert import main
from tests.matching.authors_files import (
    bidirectional_states,
    gru_shapes,
    linear_shapes,
    part,
    save_list,
    save_vocabulary,
    weights_of,
)

D, C, W, WORDS = 16, 24, 10, 30  # 1024, 2048, 300, 8481
CAPTIONS = [[1, 7, 9, 2], [1, 4, 5, 6, 29, 11, 2]]
IDS = torch.tensor([[1, 7, 9, 2, 0, 0, 0, 0], [1, 4, 5, 6, 29, 11, 2, 0]])


def authors_parts(bidirectional=True):
    text = {"embed.weight": (WORDS, W)} | gru_shapes("rnn", W, D, bidirectional)
    return weights_of(linear_shapes("fc", C, D), 1), weights_of(text, 2)


def run(folder, kind, out="out", *more):
    arguments = [kind, str(folder / "model_best.pth.tar"), "--out", str(folder / out), *more]
    arguments += ["--vocabulary", str(folder / "vocab.json")]
    return run_command(lambda: main(arguments))


@pytest.fixture
def folder(tmp_path):
    save_vocabulary(tmp_path / "vocab.json", WORDS)
    return tmp_path


def authors_score(regions, words, direction, temperature, sharpness):
    """Stacked cross-attention of one photo (R, D) and one caption (N, D), query by query."""
    query, context = (words, regions) if direction == "t2i" else (regions, words)
    affinity = leaky_relu(context @ query.T, 0.1)
    affinity = affinity / (affinity.norm(dim=1, keepdim=True) + 1e-8)  # over the queries
    total = 0.0
    for index, vector in enumerate(query):
        weights = (affinity[:, index] * temperature).softmax(0)
        attended = sum(w * c for w, c in zip(weights, context, strict=True))
        cosine = vector @ attended / (vector.norm() * attended.norm())
        total = total + (cosine * sharpness).exp()
    return total.log() / sharpness


@torch.no_grad()
@pytest.mark.parametrize(
    ("direction", "temperature", "sharpness"), [("t2i", 9.0, 6.0), ("i2t", 4.0, 20.0)]
)
def test_scan_scores_as_in_the_authors_code(folder, direction, temperature, sharpness):
    image, text = authors_parts()
    options = {"cross_attn": direction, "agg_func": "LogSumExp", "lambda_softmax": temperature}
    options |= {"lambda_lse": sharpness, "raw_feature_norm": "clipped_l2norm"}
    save_list(folder / "model_best.pth.tar", [image, text], options)
    assert run(folder, "scan") == 0
    model = load_checkpoint(folder / "out", "scorer").model
    regions = torch.randn(3, 5, C, generator=torch.Generator().manual_seed(8))
    found = model(model.photo_side(regions), *model.caption_side(IDS)).logit
    v = normalize(linear(regions, image["fc.weight"], image["fc.bias"]), dim=-1)
    states = [bidirectional_states(text, "rnn.", text["embed.weight"][c])[0] for c in CAPTIONS]
    expected = [
        [authors_score(r, normalize(w, dim=-1), direction, temperature, sharpness) for w in states]
        for r in v
    ]
    expected = torch.tensor(expected)
    assert expected.std() > 0.01
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["vsepp", "vsrn"])
def test_vsepp_embeds_as_in_the_authors_code(folder, kind, capsys):
    image, text = authors_parts(bidirectional=False)
    cnn = {"cnn.module.conv1.weight": torch.ones(2, 3, 1, 1)}
    save_list(folder / "model_best.pth.tar", [image | cnn, text], {"measure": "cosine"})
    assert run(folder, kind, "out", "--json") == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == ["cnn.module.conv1.weight"]
    checkpoint = load_checkpoint(folder / "out", "stage1")
    assert "one region" in checkpoint.config["converted_from"]["regions"]
    features = torch.randn(3, C, generator=torch.Generator().manual_seed(8))
    expected = normalize(linear(features, image["fc.weight"], image["fc.bias"]), dim=-1)
    found = checkpoint.model.embed_photos(features[:, None])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    layer = torch.nn.GRU(W, D)
    layer.load_state_dict(part(text, "rnn."))
    last = [layer(text["embed.weight"][c])[0][-1] for c in CAPTIONS]
    expected = normalize(torch.stack(last), dim=-1)
    found = checkpoint.model.embed_captions(IDS)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_vsrn_is_read_and_refused(folder, capsys):
    image, text = authors_parts(bidirectional=False)
    shapes = gru_shapes("img_rnn", D, D, bidirectional=False)
    for index in range(1, 5):
        shapes |= {f"Rs_GCN_{index}.{x}.weight": (D, D, 1) for x in ("g", "theta", "phi", "W.0")}
    save_list(folder / "model_best.pth.tar", [image | weights_of(shapes), text])
    assert run(folder, "vsrn") == 2
    message = capsys.readouterr().err
    assert "holds VSRN (4 graph convolutions, 22 image and 5 text weights)" in message
    assert run(folder, "scan") == 2
    assert "holds VSRN, not SCAN or VSE++" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agg_func": "Max"}, "agg_func = 'Max'"),
        ({"raw_feature_norm": "softmax"}, "only 'clipped_l2norm' can be converted"),
        ({"no_imgnorm": True}, "no_imgnorm = True"),
    ],
)
def test_options_that_we_do_not_compute_are_refused(folder, capsys, options, message):
    save_list(folder / "model_best.pth.tar", authors_parts(), options)
    assert run(folder, "scan") == 2
    assert message in capsys.readouterr().err


def test_what_does_not_fit_is_named(folder, capsys):
    image, text = authors_parts()
    path = folder / "model_best.pth.tar"
    save_list(path, [image, text])
    assert run(folder, "vsepp") == 2
    assert "captions in both directions" in capsys.readouterr().err
    save_list(path, [image, text | {"rnn.weight_ih_l1": torch.ones(2)}])
    assert run(folder, "scan") == 2
    assert "unknown weight 'rnn.weight_ih_l1'" in capsys.readouterr().err
    save_list(path, [image | {"fc.bias": torch.ones(3)}, text])
    assert run(folder, "scan") == 2
    assert "regions.linear.bias has shape (3,), expected (16,)" in capsys.readouterr().err
    save_vocabulary(folder / "vocab.json", WORDS + 1)  # SCAN appends no <mask>
    save_list(path, [image, text])
    assert run(folder, "scan") == 2
    assert "has 31 words" in capsys.readouterr().err
