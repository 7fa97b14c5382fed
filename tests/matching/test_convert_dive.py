"""DivE's checkpoints."""

import argparse
import math
from collections import OrderedDict

import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm, linear, normalize

from matching.checkpoint import load_checkpoint
from matching.command import run_command
from matching.convert import main
from tests.matching.authors_files import (
    bidirectional_states,
    gru_shapes,
    linear_shapes,
    norm_shapes,
    part,
    save_vocabulary,
    weights_of,
)

D, C, W, WORDS = 16, 24, 10, 30  # 1024, 2048, 300, 8482
SLOTS, ITERATIONS, HEADS, HEAD, FORWARD = 3, 4, 4, 5, 20  # 4, 4, 4, 512, 4096


def set_shapes(context):
    block, inner = "spm.agg_block", HEADS * HEAD
    shapes = {f"{block}.latents": (SLOTS, D)} | norm_shapes("spm.residual_norm", D)
    shapes |= norm_shapes(f"{block}.last_layer.0", D)
    for index in range(ITERATIONS):
        attention, forward = f"{block}.layers.{index}.0", f"{block}.layers.{index}.2"
        shapes |= {f"{attention}.fn.to_q.weight": (inner, D)}
        shapes |= {f"{attention}.fn.to_{x}.weight": (inner, context) for x in "kv"}
        shapes |= linear_shapes(f"{attention}.fn.to_out.0", inner, D)
        shapes |= norm_shapes(f"{attention}.norm", D)
        shapes |= norm_shapes(f"{attention}.norm_context", context)
        shapes |= linear_shapes(f"{forward}.fn.net.0", D, FORWARD)
        shapes |= linear_shapes(f"{forward}.fn.net.3", FORWARD, D)
        shapes |= norm_shapes(f"{forward}.norm", D)
    return shapes


def shared(weights):
    """The layers are one module listed four times, so the file repeats their weights."""
    for name in list(weights):
        if ".layers." in name:
            first = ".layers.0." + name.split(".layers.")[1].split(".", 1)[1]
            weights[name] = weights[name.split(".layers.")[0] + first]
    return weights


def authors_parts():
    image = linear_shapes("fc", C, D) | linear_shapes("mlp.fc1", D, D // 2)
    image |= norm_shapes("mlp.bn.bn", D // 2, batch=True) | linear_shapes("mlp.fc2", D // 2, D)
    text = {"embed.weight": (WORDS, W)} | gru_shapes("rnn", W, D)
    return (
        shared(weights_of(image | set_shapes(D), 1)),
        shared(weights_of(text | set_shapes(W), 2)),
    )


def save(path, image, text, **options):
    model = OrderedDict((f"img_enc.{n}", w) for n, w in image.items())
    model.update((f"txt_enc.{n}", w) for n, w in text.items())
    document = {"args": argparse.Namespace(**options), "epoch": 80, "best_score": 430.7}
    torch.save({**document, "model": model}, path)


def run(folder, out="out"):
    arguments = ["dive", str(folder / "ckpt.pth.tar"), "--out", str(folder / out)]
    arguments += ["--vocabulary", str(folder / "vocab.json")]
    return run_command(lambda: main(arguments))


def authors_set(weights, context, positions, global_feature, inside):
    """The set prediction module on one item: softmax over slots, padded inputs at 1/K."""
    found = part(weights, "spm.")

    def norm(x, name):
        return layer_norm(x, x.shape[-1:], found[f"{name}.weight"], found[f"{name}.bias"])

    slots = found["agg_block.latents"]
    for index in range(ITERATIONS):
        a, f = f"agg_block.layers.{index}.0", f"agg_block.layers.{index}.2"
        normed = norm(context, f"{a}.norm_context")
        query = linear(norm(slots, f"{a}.norm"), found[f"{a}.fn.to_q.weight"])
        key = linear(normed + positions, found[f"{a}.fn.to_k.weight"])
        value = linear(normed, found[f"{a}.fn.to_v.weight"])
        gathered = torch.zeros(SLOTS, HEADS * HEAD)
        for head in range(HEADS):
            columns = slice(head * HEAD, (head + 1) * HEAD)
            share = torch.zeros(SLOTS, len(context))
            for n in range(len(context)):
                logits = query[:, columns] @ key[n, columns] * HEAD**-0.5
                share[:, n] = (logits if inside[n] else torch.zeros(SLOTS)).softmax(0)
            for k in range(SLOTS):
                weights_of_slot = share[k] / (share[k].sum() + 1e-7)
                gathered[k, columns] = weights_of_slot @ value[:, columns]
        out = f"{a}.fn.to_out.0"
        slots = slots + linear(gathered, found[f"{out}.weight"], found[f"{out}.bias"])
        hidden = norm(slots, f"{f}.norm")
        hidden = gelu(linear(hidden, found[f"{f}.fn.net.0.weight"], found[f"{f}.fn.net.0.bias"]))
        slots = slots + linear(hidden, found[f"{f}.fn.net.3.weight"], found[f"{f}.fn.net.3.bias"])
    slots = norm(slots, "agg_block.last_layer.0")
    return normalize(norm(global_feature, "residual_norm") + slots, dim=-1)


def authors_photo(weights, regions):
    projected = linear(regions, weights["fc.weight"], weights["fc.bias"])
    norm = nn.BatchNorm1d(D // 2).eval()
    norm.load_state_dict(part(weights, "mlp.bn.bn."))
    hidden = norm(linear(projected, weights["mlp.fc1.weight"], weights["mlp.fc1.bias"])).relu()
    local = linear(hidden, weights["mlp.fc2.weight"], weights["mlp.fc2.bias"]) + projected
    return authors_set(weights, local, 0.0, local.amax(0), [True] * len(local))


def authors_caption(weights, ids, length):
    """length: of the padded batch, which the positions and the padding depend on."""
    padded = torch.tensor(ids + [0] * (length - len(ids)))
    positions = torch.zeros(length, W)
    for place in range(length):
        for i in range(W // 2):
            angle = 2 * math.pi * (place + 1) / (length + 1e-6) / 10000 ** (2 * i / W)
            positions[place, 2 * i : 2 * i + 2] = torch.tensor([math.sin(angle), math.cos(angle)])
    words = weights["embed.weight"][padded]
    _, last = bidirectional_states(weights, "rnn.", words[: len(ids)])
    inside = [place < len(ids) for place in range(length)]
    return authors_set(weights, words, positions, last, inside)


@torch.no_grad()
def test_sets_are_those_of_the_authors_code(tmp_path):
    image, text = authors_parts()
    save(tmp_path / "ckpt.pth.tar", image, text, temperature=12.0, spm_txt_pos_enc_type="sine")
    save_vocabulary(tmp_path / "vocab.json", WORDS - 1)
    assert run(tmp_path) == 0
    checkpoint = load_checkpoint(tmp_path / "out", "stage1")
    settings = checkpoint.config["model"]
    assert settings["compat"] and settings["alpha"] == 12 and settings["iterations"] == ITERATIONS
    assert checkpoint.config["converted_from"]["best_score"] == 430.7
    regions = torch.randn(2, 6, C, generator=torch.Generator().manual_seed(5))
    found = checkpoint.model.embed_photos(regions).unflatten(1, (SLOTS, D))
    expected = torch.stack([authors_photo(image, r) for r in regions])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    captions = [[1, 7, 9, 2], [1, 4, 5, 6, 28, 11, 2]]
    ids = torch.tensor([c + [0] * (7 - len(c)) for c in captions])
    found = checkpoint.model.embed_captions(ids).unflatten(1, (SLOTS, D))
    expected = torch.stack([authors_caption(text, c, 7) for c in captions])
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_layers_that_are_not_shared_are_refused(tmp_path, capsys):
    image, text = authors_parts()
    name = "spm.agg_block.layers.2.2.fn.net.0.bias"
    image[name] = image[name] + 1
    save(tmp_path / "ckpt.pth.tar", image, text)
    save_vocabulary(tmp_path / "vocab.json", WORDS)
    assert run(tmp_path) == 2
    assert f"{name} of the image part is not the same as in layer 0" in capsys.readouterr().err


def test_what_does_not_fit_is_named(tmp_path, capsys):
    image, text = authors_parts()
    path = tmp_path / "ckpt.pth.tar"
    save_vocabulary(tmp_path / "vocab.json", WORDS)
    save(path, image, text, spm_activation="relu")
    assert run(tmp_path) == 2
    assert "spm_activation = 'relu'; only 'gelu'" in capsys.readouterr().err
    save(path, image, text, eval_similarity="mp")
    assert run(tmp_path) == 2
    assert "evaluated by 'mp'" in capsys.readouterr().err
    save(path, image, {**text, "txt_pooling_fc.weight": torch.ones(2)})
    assert run(tmp_path) == 2
    assert "unknown weight 'txt_pooling_fc.weight'" in capsys.readouterr().err
    save(path, {n: w for n, w in image.items() if n != "spm.residual_norm.bias"}, text)
    assert run(tmp_path) == 2
    assert "the image part lacks 'spm.residual_norm.bias'" in capsys.readouterr().err
    save_vocabulary(tmp_path / "vocab.json", WORDS + 1)
    save(path, image, text)
    assert run(tmp_path) == 2
    assert "has 31 words" in capsys.readouterr().err
