"""VSE-infinity's checkpoints: regions and grids, BiGRU and BERT."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, normalize

from matching.checkpoint import load_checkpoint
from matching.command import run_command
from matching.convert import main
from matching.models import bert
from tests.matching.authors_files import (
    bidirectional_states,
    gru_shapes,
    linear_shapes,
    norm_shapes,
    part,
    save_list,
    save_vocabulary,
    weights_of,
)

D, C, W, WORDS = 16, 24, 10, 30  # 1024, 2048, 300; 11354 or 8482 with <mask>
WIDTH, LAYERS, HEADS, PIECES = 8, 2, 2, 40  # 768, 12, 12, 30522


def pooling_shapes(name="gpool"):
    return gru_shapes(f"{name}.gru", 32, 32) | {f"{name}.linear.weight": (1, 32)}


def region_shapes():
    shapes = linear_shapes("fc", C, D) | linear_shapes("mlp.layers.0", C, D // 2)
    shapes |= linear_shapes("mlp.layers.1", D // 2, D)
    shapes |= norm_shapes("mlp.bns.0", D // 2, batch=True) | norm_shapes("mlp.bns.1", D, batch=True)
    return shapes | pooling_shapes()


def bigru_shapes():
    return {"embed.weight": (WORDS, W)} | gru_shapes("rnn", W, D) | pooling_shapes()


def bert_shapes():
    shapes = {
        "bert.embeddings.position_ids": (1, 12),
        "bert.embeddings.word_embeddings.weight": (PIECES, WIDTH),
        "bert.embeddings.position_embeddings.weight": (12, WIDTH),
        "bert.embeddings.token_type_embeddings.weight": (2, WIDTH),
        **norm_shapes("bert.embeddings.LayerNorm", WIDTH),
        **linear_shapes("bert.pooler.dense", WIDTH, WIDTH),
    }
    for index in range(LAYERS):
        layer = f"bert.encoder.layer.{index}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= linear_shapes(f"{layer}.attention.{name}", WIDTH, WIDTH)
        shapes |= norm_shapes(f"{layer}.attention.output.LayerNorm", WIDTH)
        shapes |= linear_shapes(f"{layer}.intermediate.dense", WIDTH, 4 * WIDTH)
        shapes |= linear_shapes(f"{layer}.output.dense", 4 * WIDTH, WIDTH)
        shapes |= norm_shapes(f"{layer}.output.LayerNorm", WIDTH)
    return shapes | linear_shapes("linear", WIDTH, D) | pooling_shapes()


def run(folder, vocabulary="vocab.json", out="out"):
    arguments = ["vse_infinity", str(folder / "model_best.pth"), "--out", str(folder / out)]
    if vocabulary:
        arguments += ["--vocabulary", str(folder / vocabulary)]
    return run_command(lambda: main(arguments))


def pooled(weights, features, name="gpool"):
    """GPO of one set (S, D), dimension by dimension, then unit length."""
    size = len(features)
    encoding = torch.zeros(size, 32)
    for position in range(size):
        for i in range(16):
            angle = torch.tensor(position * 10000 ** (-2 * i / 32))
            encoding[position, 2 * i], encoding[position, 2 * i + 1] = angle.sin(), angle.cos()
    states, _ = bidirectional_states(weights, f"{name}.gru.", encoding)
    coefficients = (linear(states, weights[f"{name}.linear.weight"])[:, 0] / 0.1).softmax(0)
    vector = torch.zeros(features.shape[1])
    for dimension in range(features.shape[1]):
        ranked = sorted(features[:, dimension].tolist(), reverse=True)
        vector[dimension] = sum(c * x for c, x in zip(coefficients, ranked, strict=True))
    return normalize(vector, dim=0)


def authors_photo(weights, regions):
    features = linear(regions, weights["fc.weight"], weights["fc.bias"])
    mlp = nn.Sequential(
        nn.Linear(C, D // 2), nn.BatchNorm1d(D // 2), nn.ReLU(), nn.Linear(D // 2, D)
    ).eval()
    for layer, name in ((0, "mlp.layers.0."), (1, "mlp.bns.0."), (3, "mlp.layers.1.")):
        mlp[layer].load_state_dict(part(weights, name))
    return pooled(weights, features + mlp(regions))


def authors_pieces(weights, ids):
    """BERT by torch's own encoder layers."""
    tables = {
        n: weights[f"bert.embeddings.{n}_embeddings.weight"]
        for n in ("word", "position", "token_type")
    }
    hidden = tables["word"][ids] + tables["position"][: len(ids)] + tables["token_type"][0]
    norm = part(weights, "bert.embeddings.LayerNorm.")
    hidden = nn.functional.layer_norm(hidden, (WIDTH,), **norm, eps=1e-12)[None]
    for index in range(LAYERS):
        found = part(weights, f"bert.encoder.layer.{index}.")
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True
        ).eval()
        state = {}
        for kind in ("weight", "bias"):
            parts = [found[f"attention.self.{n}.{kind}"] for n in ("query", "key", "value")]
            state[f"self_attn.in_proj_{kind}"] = torch.cat(parts)
            state[f"self_attn.out_proj.{kind}"] = found[f"attention.output.dense.{kind}"]
            state[f"linear1.{kind}"] = found[f"intermediate.dense.{kind}"]
            state[f"linear2.{kind}"] = found[f"output.dense.{kind}"]
            state[f"norm1.{kind}"] = found[f"attention.output.LayerNorm.{kind}"]
            state[f"norm2.{kind}"] = found[f"output.LayerNorm.{kind}"]
        layer.load_state_dict(state)
        hidden = layer(hidden)
    return linear(hidden[0], weights["linear.weight"], weights["linear.bias"])


def padded(captions):
    ids = torch.zeros(len(captions), max(map(len, captions)) + 2, dtype=torch.long)
    for row, caption in enumerate(captions):
        ids[row, : len(caption)] = torch.tensor(caption)
    return ids


CAPTIONS = [[1, 7, 9, 2], [1, 4, 5, 6, 29, 11, 2], [1, 2]]


@torch.no_grad()
def test_regions_with_bigru_embed_as_in_the_authors_code(tmp_path, capsys):
    image, text = weights_of(region_shapes(), 1), weights_of(bigru_shapes(), 2)
    save_list(tmp_path / "model_best.pth", [image, text], {"no_imgnorm": False})
    save_vocabulary(tmp_path / "vocab.json", WORDS - 1)  # published without <mask>
    assert run(tmp_path) == 0
    assert "5 weights left out" in capsys.readouterr().out  # mlp.bns.1.*
    checkpoint = load_checkpoint(tmp_path / "out", "stage1")
    assert checkpoint.vocabulary.words[-1] == "<mask>"
    regions = torch.randn(2, 6, C, generator=torch.Generator().manual_seed(5))
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 4:] = False
    expected = torch.stack([authors_photo(image, r[m]) for r, m in zip(regions, mask, strict=True)])
    torch.testing.assert_close(
        checkpoint.model.embed_photos(regions, mask), expected, atol=1e-5, rtol=1e-4
    )
    words = [bidirectional_states(text, "rnn.", text["embed.weight"][c])[0] for c in CAPTIONS]
    expected = torch.stack([pooled(text, w) for w in words])
    assert expected.std() > 0.1
    found = checkpoint.model.embed_captions(padded(CAPTIONS))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_bert_embeds_as_in_the_authors_code(tmp_path, monkeypatch):
    small = partial(bert.Bert, WIDTH, LAYERS, HEADS, PIECES, 12)
    monkeypatch.setattr(bert, "Bert", small)
    monkeypatch.setattr(bert, "WIDTH", WIDTH)
    image, text = weights_of(region_shapes(), 1), weights_of(bert_shapes(), 2)
    save_list(tmp_path / "model_best.pth", [image, text], prefix="module.")
    assert run(tmp_path, vocabulary=None) == 0
    checkpoint = load_checkpoint(tmp_path / "out", "stage1")
    assert checkpoint.config["model"]["word_encoder"] == "bert" and checkpoint.vocabulary is None
    left_out = checkpoint.config["converted_from"]["left_out"]
    assert set(left_out) - {n for n in left_out if n.startswith("mlp.bns.1.")} == {
        "bert.embeddings.position_ids",
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
    }
    captions = [[3, 17, 9, 39], [3, 30, 31, 22, 7, 39]]
    expected = torch.stack([pooled(text, authors_pieces(text, c)) for c in captions])
    assert expected.std() > 0.1
    found = checkpoint.model.embed_captions(padded(captions))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_the_head_of_a_grid_model_is_converted_without_its_cnn(tmp_path):
    shapes = {"backbone.resnet.conv1.weight": (2, 3, 1, 1), "backbone.top.0.weight": (2,)}
    shapes |= linear_shapes("image_encoder.fc", C, D) | pooling_shapes("image_encoder.gpool")
    image, text = weights_of(shapes, 1), weights_of(bigru_shapes(), 2)
    save_list(tmp_path / "model_best.pth", [image, text])
    save_vocabulary(tmp_path / "vocab.json", WORDS, mask=True)
    assert run(tmp_path) == 0
    checkpoint = load_checkpoint(tmp_path / "out")
    assert checkpoint.config["converted_from"]["left_out"] == list(shapes)[:2]
    assert "backbone" in checkpoint.config["converted_from"]["regions"]
    cells = torch.randn(9, C, generator=torch.Generator().manual_seed(5))
    features = linear(cells, image["image_encoder.fc.weight"], image["image_encoder.fc.bias"])
    expected = pooled(image, features, "image_encoder.gpool")
    found = checkpoint.model.embed_photos(cells[None])[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_what_does_not_fit_is_named(tmp_path, capsys):
    image, text = weights_of(region_shapes(), 1), weights_of(bigru_shapes(), 2)
    path = tmp_path / "model_best.pth"
    save_list(path, [image, text])
    save_vocabulary(tmp_path / "vocab.json", WORDS - 2)
    assert run(tmp_path) == 2
    assert "has 28 words" in capsys.readouterr().err
    save_vocabulary(tmp_path / "vocab.json", WORDS)
    save_list(path, [{**image, "mlp.bns.2.weight": torch.ones(3)}, text])
    assert run(tmp_path) == 2
    assert "unknown weight 'mlp.bns.2.weight'" in capsys.readouterr().err
    save_list(path, [{**image, "gpool.linear.weight": torch.ones(2, 32)}, text])
    assert run(tmp_path) == 2
    assert "region_pooling.score.weight has shape (2, 32)" in capsys.readouterr().err
    save_list(path, [image, {n: w for n, w in text.items() if "gpool" not in n}])
    assert run(tmp_path) == 2
    assert "the text part lacks 'gpool.gru.weight_ih_l0'" in capsys.readouterr().err
    save_list(path, [image, text], {"no_txtnorm": True})
    assert run(tmp_path) == 2
    assert "no_txtnorm = True" in capsys.readouterr().err


def test_an_old_file_without_batch_counts_is_read(tmp_path):
    image = weights_of(region_shapes(), 1)
    image = {n: w for n, w in image.items() if not n.endswith("num_batches_tracked")}
    save_list(tmp_path / "model_best.pth", [image, weights_of(bigru_shapes(), 2)])
    save_vocabulary(tmp_path / "vocab.json", WORDS)
    assert run(tmp_path) == 0


@pytest.mark.parametrize("kind", ["camp", "dive", "scan", "vsepp", "vsrn"])
def test_a_file_of_another_system_is_recognised(tmp_path, capsys, kind):
    path = tmp_path / "model_best.pth"
    save_list(path, [weights_of(region_shapes(), 1), weights_of(bigru_shapes(), 2)])
    assert run_command(lambda: main([kind, str(path), "--out", str(tmp_path / "out")])) == 2
    assert "holds VSE-infinity, not" in capsys.readouterr().err
