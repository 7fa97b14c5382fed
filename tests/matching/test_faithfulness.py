"""Hiding is what it says; the shipped maps point at what counts, and untrained ones do not."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from app.gallery_folder import read_items
from matching.captions import CaptionedPhoto, write_captions
from matching.config import CampConfig
from matching.engine_description import DEFAULT_ENGINE
from matching.faithfulness import main
from matching.image import photo_pixels
from matching.models.backbones import Backbones
from matching.models.text_backbone import backbone_folder
from matching.saliency import MAPS, SHOWN_MAP
from matching.systems import make_system
from matching.text import CaptionReader
from matching.visible_pairs import GREY, TorchPairs, hide_pixels

ROOT = Path(__file__).parents[2]
TEXT = "two brown dogs run through the snow"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    scorer = make_system("camp", CampConfig(dimension=16, key_dimension=8, hidden=16)).eval()
    reader = CaptionReader(backbone_folder() / "tokenizer.json")
    return TorchPairs(Backbones.published(), scorer, reader)


@pytest.fixture(scope="module")
def pair(model):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    return model.pair(Image.fromarray(pixels).resize((300, 200)), TEXT)


def test_sets_are_scored_without_what_is_hidden(model, pair):
    rng = np.random.default_rng(1)
    regions = rng.random((3, 36)) < 0.4
    words = np.array([[True] * 7, [True, False, True, False, True, True, False], [False] * 7])
    photo, caption, mask = model._sides(pair)
    with torch.inference_mode():
        expected = [
            model._scorer(photo[:, row], caption, mask).logit.sigmoid().item() for row in regions
        ]
        kept = [caption[:, row] for row in words[:2]]
        by_words = [model._scorer(photo, k, torch.ones(1, k.shape[1]).bool()).logit for k in kept]
    np.testing.assert_allclose(model.with_regions(pair, regions, "sets"), expected, rtol=1e-5)
    found = model.with_words(pair, words, "sets")
    np.testing.assert_allclose(found[:2], [t.sigmoid().item() for t in by_words], rtol=1e-5)
    assert found[2] == 0  # without words there is nothing to match


def test_inputs_are_encoded_without_what_is_hidden(model, pair):
    regions = np.ones((2, 36), bool)
    regions[1, :6] = False  # the topmost row of windows
    black = Image.fromarray(hide_pixels(pair.pixels, regions[1]))
    expected = [model.explain(p).logit.sigmoid().item() for p in (pair, model.pair(black, TEXT))]
    np.testing.assert_allclose(model.with_regions(pair, regions, "inputs"), expected, rtol=1e-4)
    assert expected[0] != expected[1]
    words = np.array([[False, False, True, True, True, True, True]])
    cut = model.pair(Image.fromarray(pair.pixels), "dogs run through the snow")
    expected = model.explain(cut).logit.sigmoid().item()
    np.testing.assert_allclose(model.with_words(pair, words, "inputs"), [expected], rtol=1e-4)


def test_hidden_pixels_are_grey(pair):
    visible = np.ones(36, bool)
    visible[7] = False  # second row, second column: cells 1 and 2 each way
    hidden = hide_pixels(pair.pixels, visible)
    inside = np.zeros((256, 256), bool)
    inside[32:96, 32:96] = True
    assert (hidden[inside] == GREY).all()
    np.testing.assert_array_equal(hidden[~inside], pair.pixels[~inside])
    assert photo_pixels(Image.fromarray(hidden)).shape == hidden.shape


def test_the_shipped_maps_tell_the_truth(tmp_path, capsys):
    """On the photos of the default gallery, which no model was trained on."""
    gallery = ROOT / "gallery/default"
    items = [item for part in ("part-00000", "part-00001") for item in read_items(gallery, part)]
    photos = [CaptionedPhoto(item.path, "test", item.captions) for item in items]
    write_captions(tmp_path / "captions.jsonl", photos)
    arguments = ["--captions", str(tmp_path / "captions.jsonl"), "--photos", str(gallery)]
    arguments += ["--scorer", str(ROOT / "checkpoints/standard/camp"), "--pairs", "24"]
    arguments += ["--engine", str(ROOT / DEFAULT_ENGINE), "--ways", "sets", "--json"]
    main(arguments)
    document = json.loads(capsys.readouterr().out)
    trained = document["trained"]["deletion"]["sets"]
    assert trained["regions"][SHOWN_MAP]["deletion_below_random"] > 30
    assert trained["words"][SHOWN_MAP]["deletion_below_random"] > 10
    for side in ("regions", "words"):
        untrained = document["untrained"]["deletion"]["sets"][side]
        assert all(abs(untrained[name]["deletion_below_random"]) < 8 for name in MAPS)
    assert document["trained"]["sensitivity"]["all"]["score_falls"] > 70
    assert document["trained"]["sensitivity"]["all"]["gate_falls"] > 70
    rows = document["agreement"]
    onnx = next(row for name, row in rows.items() if name.startswith("ONNX"))
    assert onnx["largest_difference"] < 1e-4
    assert rows["torch, fp16 scorer"]["largest_difference"] < 0.02
