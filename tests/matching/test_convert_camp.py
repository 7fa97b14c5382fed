"""CAMP's released checkpoints."""

import json

import pytest
import torch
from torch.nn.functional import linear, normalize

from matching.checkpoint import load_checkpoint
from matching.command import run_command
from matching.convert import main
from tests.matching.authors_files import (
    EasyDict,
    bidirectional_states,
    gru_shapes,
    linear_shapes,
    provide_easydict,
    save_list,
    save_vocabulary,
    weights_of,
)

D, C, W, WORDS = 16, 24, 10, 30  # 1024, 2048, 300 and 8590 in the published file


def authors_parts():
    scorer = {f"{m}_{k}_fc.weight": (D, D) for m in ("img", "txt") for k in ("key", "query")}
    scorer |= {f"weighted_{name}": shape for name, shape in scorer.items()}
    scorer |= {"fc_1.0.weight": (D, 2 * D), "fc_2.0.weight": (D, 2 * D)}
    scorer |= linear_shapes("fc_out.0", 2 * D, D) | linear_shapes("fc_out.3", D, 1)
    for number in (1, 2):
        scorer |= linear_shapes(f"final_reduce_{number}.linear.0", D, D)
        scorer |= linear_shapes(f"final_reduce_{number}.linear.2", D, 4)
    text = {"embed.weight": (WORDS, W)} | gru_shapes("rnn", W, D)
    return [
        weights_of(shapes, seed)
        for seed, shapes in enumerate((linear_shapes("fc", C, D), text, scorer))
    ]


@pytest.fixture
def files(tmp_path, monkeypatch):
    provide_easydict(monkeypatch)
    save_vocabulary(tmp_path / "vocab.json", WORDS)
    return tmp_path


def run(files, *more, vocabulary="vocab.json", out="out"):
    arguments = ["camp", str(files / "checkpoint_150.pth.tar"), "--out", str(files / out), *more]
    if vocabulary:
        arguments += ["--vocabulary", str(files / vocabulary)]
    return run_command(lambda: main(arguments))


def save(files, parts, **options):
    return save_list(files / "checkpoint_150.pth.tar", parts, options, "module.", zipped=False)


def summary_attention(scorer, number, positions):
    """One position after the other: softmax over positions for each of 4 heads, mean of heads."""
    name = f"final_reduce_{number}.linear"
    logits = []
    for position in positions:
        hidden = linear(position, scorer[f"{name}.0.weight"], scorer[f"{name}.0.bias"]).relu()
        logits.append(linear(hidden, scorer[f"{name}.2.weight"], scorer[f"{name}.2.bias"]))
    weights = torch.stack(logits).softmax(0)  # (positions, 4)
    total = torch.zeros(D)
    for head in range(4):
        for position, weight in zip(positions, weights[:, head], strict=True):
            total += weight * position / 4
    return normalize(total, dim=0)


def attend(queries, keys, values):
    rows = []
    for query in queries:
        weights = torch.stack([query @ key for key in keys]).div(D**0.5).softmax(0)
        rows.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
    return torch.stack(rows)


def authors_logit(parts, regions, word_ids):
    """gate_fusion_new on one photo and one caption without padding."""
    image, text, scorer = parts
    v = linear(regions, image["fc.weight"], image["fc.bias"])
    t, _ = bidirectional_states(text, "rnn.", text["embed.weight"][word_ids])

    def project(name, x):
        return linear(x, scorer[f"{name}_fc.weight"])

    of_words = attend(project("img_query", v), project("txt_key", t), t)  # to regions
    of_regions = attend(project("txt_query", t), project("img_key", v), v)  # to words
    names = ("weighted_txt", "weighted_img")
    stars = []
    for number, (own, message, name) in enumerate(
        zip((v, t), (of_words, of_regions), names, strict=True), 1
    ):
        refined = attend(
            project(f"{name}_query", message), project(f"{name}_key", message), message
        )
        positions = []
        for x, m in zip(own, normalize(refined, dim=-1), strict=True):
            gated = torch.sigmoid(x @ m) * torch.cat([x, m])
            positions.append(linear(gated, scorer[f"fc_{number}.0.weight"]).relu() + x)
        stars.append(summary_attention(scorer, number, positions))
    hidden = linear(torch.cat(stars), scorer["fc_out.0.weight"], scorer["fc_out.0.bias"]).relu()
    return linear(hidden, scorer["fc_out.3.weight"], scorer["fc_out.3.bias"]).squeeze()


@torch.no_grad()
def test_scores_are_those_of_the_authors_equations(files, capsys):
    parts = authors_parts()
    save(files, parts, no_imgnorm=True, no_txtnorm=True)
    assert run(files, "--json") == 0
    assert json.loads(capsys.readouterr().out)["system"] == "camp"
    checkpoint = load_checkpoint(files / "out", "scorer")
    assert checkpoint.config["converted_from"]["best_rsum"] == 412.5
    assert len(checkpoint.vocabulary) == WORDS
    regions = torch.randn(3, 5, C, generator=torch.Generator().manual_seed(8))
    captions = [[1, 7, 9, 2], [1, 4, 5, 6, 29, 11, 2]]
    word_ids = torch.zeros(2, 9, dtype=torch.long)
    for row, ids in enumerate(captions):
        word_ids[row, : len(ids)] = torch.tensor(ids)
    model = checkpoint.model
    logits = model(model.photo_side(regions), *model.caption_side(word_ids)).logit
    expected = [[authors_logit(parts, r, torch.tensor(c)) for c in captions] for r in regions]
    expected = torch.tensor(expected)
    assert expected.std() > 0.02
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)


def test_an_easydict_of_options_is_read(files, capsys):
    path = files / "checkpoint_150.pth.tar"
    document = {"model": authors_parts(), "opt": EasyDict({"no_imgnorm": True})}
    torch.save(document, path, _use_new_zipfile_serialization=False)
    assert run(files) == 0
    document["opt"] = EasyDict({"no_imgnorm": False})
    torch.save(document, path, _use_new_zipfile_serialization=False)
    assert run(files, out="other") == 2
    assert "trained with no_imgnorm = False; only True" in capsys.readouterr().err


def test_a_vocabulary_of_another_size_is_refused(files, capsys):
    save(files, authors_parts())
    save_vocabulary(files / "scan.json", WORDS - 3)
    assert run(files, vocabulary="scan.json") == 2
    message = capsys.readouterr().err
    assert "scan.json has 27 words" in message and "has 30 rows: give the vocabulary" in message
    assert run(files, vocabulary=None) == 2
    assert "--vocabulary" in capsys.readouterr().err
    assert not (files / "out").exists()


def test_names_and_shapes_that_do_not_fit_are_named(files, capsys):
    parts = authors_parts()
    del parts[2]["fc_2.0.weight"]
    save(files, parts)
    assert run(files) == 2
    assert "the scorer part lacks 'fc_2.0.weight'" in capsys.readouterr().err
    parts = authors_parts()
    parts[1]["attention_layer.linear.0.weight"] = torch.ones(2, 2)
    save(files, parts)
    assert run(files) == 2
    assert "unknown weight 'attention_layer.linear.0.weight'" in capsys.readouterr().err
    parts = authors_parts()
    parts[2]["fc_1.0.weight"] = torch.ones(D, D)
    save(files, parts)
    assert run(files) == 2
    message = capsys.readouterr().err
    assert "photo.fusion.weight has shape (16, 16), expected (16, 32)" in message


def test_the_other_scorers_of_the_release_are_refused(files, capsys):
    parts = authors_parts()
    parts[2] = {n: w for n, w in parts[2].items() if n.endswith("_fc.weight")}
    save(files, parts)
    assert run(files) == 2
    assert "holds CAMP cross_attention_new, not CAMP gate_fusion_new" in capsys.readouterr().err


def test_a_folder_with_a_checkpoint_is_not_overwritten(files, capsys):
    save(files, authors_parts())
    assert run(files) == 0
    assert run(files) == 2
    assert "holds a checkpoint already" in capsys.readouterr().err
