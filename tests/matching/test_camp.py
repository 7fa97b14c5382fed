"""The default form of CAMP: its published weights and graph, its layout, and ONNX of all forms."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

from matching.config import CampConfig, settings_from
from matching.models.camp import Camp
from tests.matching.camp_loops import FORMS, D, K, made
from tests.matching.onnx_parity import dimension, exported_session, run

ROOT = Path(__file__).parents[2]
OUTPUTS = ["logit", "word_attention", "region_attention", "word_gates", "region_gates"]


@pytest.fixture(scope="module")
def published() -> Camp:
    folder = ROOT / "checkpoints/default/camp"
    config = json.loads((folder / "config.json").read_text())["model"]
    camp = Camp(settings_from(CampConfig, config, "config.json"))
    weights = load_file(folder / "model.safetensors")
    camp.load_state_dict({name: value.float() for name, value in weights.items()}, strict=True)
    return camp.eval()


def sides(camp: Camp, photos: int, regions: int, lengths: list[int], seed: int = 6):
    """Features of length sqrt(D), as the encoders make them, and their sides."""
    generator = torch.Generator().manual_seed(seed)
    size = camp.dimension
    v = torch.randn(photos, regions, size, generator=generator)
    t = torch.randn(len(lengths), max(lengths), size, generator=generator)
    v, t = (size**0.5 * x / x.norm(dim=-1, keepdim=True) for x in (v, t))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return camp.photo_side_of(v), camp.caption_side_of(t), mask


@torch.no_grad()
def test_the_published_graph_scores_as_the_module_does(published):
    """The sides that engine and gallery hold are still read in the same order."""
    photo, caption, mask = sides(published, 5, 36, [7, 4, 1])
    session = onnxruntime.InferenceSession(ROOT / "engines/default/pair_scorer.onnx")
    inputs = {"image_side": photo, "caption_side": caption, "word_mask": mask}
    found = session.run(OUTPUTS, {name: value.numpy() for name, value in inputs.items()})
    expected = published(photo, caption, mask)
    assert expected.logit.std() > 0.1
    for ours, theirs in zip(expected, found, strict=True):
        np.testing.assert_allclose(theirs, ours.numpy(), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_the_layout_of_a_side():
    camp = made({})
    v = torch.randn(2, 3, D, generator=torch.Generator().manual_seed(1))
    parts = (v, camp.photo.key(v), camp.photo.fusion(v), camp.caption.fusion(v))
    torch.testing.assert_close(camp.photo_side_of(v), torch.cat(parts, -1))
    parts = (v, camp.caption.key(v), camp.caption.fusion(v), camp.photo.fusion(v))
    torch.testing.assert_close(camp.caption_side_of(v), torch.cat(parts, -1))
    assert camp.side_width == 3 * D + K
    assert camp.extra_positions == 0


def test_the_names_of_the_default_parameters():
    names = {n for n, _ in made({}).named_parameters() if n.startswith(("photo", "caption", "sc"))}
    passing = ("key.weight", "fusion.weight", "aggregation", "gate_scale", "gate_bias")
    score = {f"score.{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")}
    assert names == {f"{side}.{p}" for side in ("photo", "caption") for p in passing} | score


@torch.no_grad()
def test_features_are_as_long_as_the_setting_says():
    regions = torch.randn(2, 3, 1400, generator=torch.Generator().manual_seed(1))
    for normalised in (True, False):
        camp = made({"normalise_features": normalised})
        v = camp.region_features(regions)
        lengths = v.norm(dim=-1)
        assert torch.allclose(lengths, torch.tensor(D**0.5), atol=1e-4) == normalised
        torch.testing.assert_close(camp.photo_side(regions), camp.photo_side_of(v))


@torch.no_grad()
def test_a_missing_mask_is_seen():
    """Padding would change the score if the mask did not hold it back."""
    camp = made({})
    photo, caption, mask = sides(camp, 2, 4, [5, 2])
    expected = camp(photo, caption, mask).logit
    ignoring = camp(photo, caption, torch.ones_like(mask)).logit
    torch.testing.assert_close(ignoring[:, 0], expected[:, 0])
    assert (ignoring[:, 1] - expected[:, 1]).abs().max() > 1e-2


@pytest.mark.parametrize("form", ["fast", "paper", "release"])
@torch.no_grad()
def test_the_exported_graph_scores_alike(form):
    """At other numbers of photos, captions, regions and words than those of the example."""
    camp = made(FORMS[form], scale=2.0)
    session = exported_session(
        camp,
        sides(camp, 2, 3, [5, 4, 4, 2]),
        (
            {0: dimension("photos"), 1: dimension("regions")},
            {0: dimension("captions"), 1: dimension("words")},
            {0: dimension("captions"), 1: dimension("words")},
        ),
        ["image_side", "caption_side", "word_mask"],
        OUTPUTS,
    )
    assert [i.name for i in session.get_inputs()] == ["image_side", "caption_side", "word_mask"]
    for photos, regions, lengths in ((7, 6, [9, 1]), (1, 1, [1]), (3, 2, [2, 6, 3, 4, 1])):
        inputs = sides(camp, photos, regions, lengths, seed=photos)
        expected = camp(*inputs)
        assert photos == 1 or expected.logit.std() > 0.02
        for name, ours, theirs in zip(OUTPUTS, expected, run(session, *inputs), strict=True):
            np.testing.assert_allclose(theirs, ours.numpy(), atol=1e-5, rtol=1e-4, err_msg=name)
