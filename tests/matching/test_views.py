"""Reading a photo in several views, against the single backbone run by hand on each of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from matching.checkpoint import load_checkpoint, save_checkpoint
from matching.config import VseInfinityConfig
from matching.image import GRID, region_windows
from matching.models.backbones import Backbones, save_backbones, tuned_parameters
from matching.models.image_backbone import ImageBackbone
from matching.models.image_views import ImageViews, View
from matching.systems import make_system
from matching.views import main


@pytest.fixture(scope="module")
def backbone():
    return ImageBackbone().eval()


@pytest.fixture(scope="module")
def pixels():
    return torch.rand(2, 3, 256, 256, generator=torch.Generator().manual_seed(3)) * 255


@torch.inference_mode()
def test_a_mirrored_view_puts_each_region_back_to_its_place(backbone, pixels):
    found = ImageViews(backbone, (View(mirrored=True),))(pixels)
    mirrored = backbone(pixels.flip(-1))
    for row in range(GRID):
        for column in range(GRID):
            theirs = mirrored[:, row * GRID + GRID - 1 - column]
            assert torch.allclose(found[:, row * GRID + column], theirs, atol=1e-5)


@torch.inference_mode()
def test_views_are_averaged(backbone, pixels):
    found = ImageViews(backbone, (View(), View(mirrored=True)))(pixels)
    one, other = (ImageViews(backbone, (view,))(pixels) for view in (View(), View(mirrored=True)))
    assert torch.allclose(found, (one + other) / 2, atol=1e-5)
    assert not torch.allclose(found, one, atol=1e-2)


@torch.inference_mode()
def test_a_larger_view_has_regions_of_the_same_places(backbone):
    # Bright in the upper right corner alone, which is four regions in any view.
    pixels = torch.zeros(1, 3, 256, 256)
    pixels[..., :64, 192:] = 255
    for size in (256, 384):
        regions = ImageViews(backbone, (View(size),))(pixels)[0]
        middle = regions[GRID * GRID // 2 :].mean(0)
        assert int((regions - middle).norm(dim=-1).argmax()) in (4, 5, 10, 11)


def test_windows_of_any_size_share_out_every_region():
    for cells in (8, 12):
        windows = region_windows(cells)
        assert windows.shape == (GRID * GRID, cells * cells)
        assert np.allclose(windows.sum(1), 1)
    # 12 cells part evenly into 6: every region is a block of 2 x 2 of its own.
    assert set(region_windows(12).sum(0)) == {0.25}


@pytest.mark.parametrize("text", ["128", "300", "m", "big", "256x"])
def test_an_impossible_view_is_refused(text):
    with pytest.raises(ValueError, match="multiple of 32"):
        View.parse(text)
    assert str(View.parse("384m")) == "384m"


@pytest.fixture
def tuned_checkpoints(tmp_path):
    """Backbones that were tuned a little, and a stage 1 behind them."""
    published, folder = Backbones.published(), tmp_path / "small"
    weights = tuned_parameters(published.image, published.text)
    save_backbones(folder / "backbones", {n: 1.5 * w for n, w in weights.items()}, {})
    config = VseInfinityConfig(dimension=16, hidden=16)
    details = {"backbone_sha256": Backbones.load(folder / "backbones").sha256}
    heads = make_system("vse_infinity", config).state_dict()
    save_checkpoint(folder / "vse_infinity", "vse_infinity", heads, config, details)
    return folder


def test_the_command_makes_checkpoints_behind_views(tmp_path, tuned_checkpoints):
    out = tmp_path / "large"
    assert main(["256", "256m", "--from", str(tuned_checkpoints), "--out", str(out)]) == 0
    small, large = (
        Backbones.load(tuned_checkpoints / "backbones"),
        Backbones.load(out / "backbones"),
    )
    assert large.views == (View(), View(mirrored=True))
    for name, parameter in small.image.named_parameters():
        assert torch.equal(parameter, large.image.get_parameter(name))
    config = json.loads((out / "vse_infinity" / "config.json").read_text())
    assert config["backbone_sha256"] == large.sha256 != small.sha256
    assert config["trained_on_backbone_sha256"] == small.sha256
    ours, theirs = (load_checkpoint(f / "vse_infinity") for f in (out, tuned_checkpoints))
    assert ours.sha256 == theirs.sha256
    assert not list((out / "vse_infinity").glob("*.safetensors*"))
