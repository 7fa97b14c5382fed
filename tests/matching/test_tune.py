"""Tuning ends the same after a kill, changes only the upper parts, and what it leaves fits."""

import json

import numpy as np
import pytest
import torch

from matching import training
from matching.captions import CaptionedPhoto
from matching.checkpoint import load_checkpoint, save_checkpoint
from matching.config import Training, VseInfinityConfig
from matching.features import DatasetDescription
from matching.files import write_array
from matching.lower_maps import LowerMaps, map_shard
from matching.models.backbones import Backbones, backbones_beside, save_backbones, tuned_parameters
from matching.systems import make_system
from matching.tune import DEFAULTS, TunedStage1, tune
from matching.tuning_set import caption_tensors
from matching.weight_parts import read_parts

STAGE1 = VseInfinityConfig(dimension=16, hidden=16)
SMALL = {"epochs": 2, "groups": 2, "group_size": 2, "pool_size": 4}
CONFIG = Training(**{**vars(DEFAULTS), **SMALL})
TEXTS = ("a dog", "two big skateboarders in the park")


class Killed(BaseException):
    pass


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    rng = np.random.default_rng(0)
    photos = [
        CaptionedPhoto(f"{i}.jpg", "train" if i < 8 else "val", TEXTS[: 1 + i % 2])
        for i in range(12)
    ]
    DatasetDescription("captions", "lower", photos).write(folder / "maps")
    maps = rng.normal(size=(12, 88, 16, 16)).astype(np.float16)
    write_array(map_shard(folder / "maps", "plain", 0), maps)
    torch.manual_seed(1)
    weights = make_system("vse_infinity", STAGE1).state_dict()
    details = {"backbone_sha256": Backbones.published().sha256}
    save_checkpoint(folder / "start", "vse_infinity", weights, STAGE1, details)
    return folder


def run(data, out):
    start = load_checkpoint(data / "start")
    return tune(start, [LowerMaps(data / "maps")], CONFIG, out, out / "run")


def test_killed_and_resumed_is_the_same(data, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_SAVE_EVERY_SECONDS", 0)
    history = run(data, tmp_path / "whole")
    assert [validation["epoch"] for validation in history] == [1, 2]
    step = training.Trainer._step

    def killing_step(self, batch):
        if self._progress.step == 3:
            raise Killed
        return step(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "_step", killing_step)
        with pytest.raises(Killed):
            run(data, tmp_path / "broken")
    assert run(data, tmp_path / "broken") == history
    for name in ("backbones/tuned.safetensors", "vse_infinity/model.safetensors"):
        whole, broken = (tmp_path / f / name for f in ("whole", "broken"))
        assert read_parts(whole) == read_parts(broken)

    stage1 = load_checkpoint(tmp_path / "whole" / "vse_infinity", "stage1")
    backbones = Backbones.load(backbones_beside(stage1.folder))
    assert stage1.config["backbone_sha256"] == backbones.sha256
    published = Backbones.published()
    tuned = tuned_parameters(backbones.image, backbones.text)
    was = tuned_parameters(published.image, published.text)
    assert all(not torch.equal(tuned[name], was[name]) for name in tuned if "weight" in name)
    for ours, theirs in ((backbones.image, published.image), (backbones.text, published.text)):
        moved = {id(p) for p in tuned.values()}
        pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs if id(a) not in moved)


def test_captions_of_any_length_embed_as_alone():
    model = TunedStage1(Backbones.published(), make_system("vse_infinity", STAGE1), 4).eval()
    texts = ["a dog", "two big skateboarders in the park with a very long caption", "cats"] * 20
    with torch.inference_mode():
        together = model.embed_captions(*caption_tensors(texts))
        alone = torch.cat([model.embed_captions(*caption_tensors([text])) for text in texts[:3]])
    torch.testing.assert_close(together[:3], alone, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(together[3:6], together[:3], atol=1e-5, rtol=1e-4)


def test_backbones_that_do_not_fit_are_named(tmp_path):
    published = Backbones.published()
    weights = dict(tuned_parameters(published.image, published.text))
    folder = tmp_path / "backbones"
    save_backbones(folder, weights, {})
    assert Backbones.load(folder).sha256 == published.sha256  # fp16 holds the published weights
    name, tensor = weights.popitem()
    save_backbones(folder, weights, {})
    with pytest.raises(ValueError, match=f"lacks tensor '{name}'"):
        Backbones.load(folder)
    save_backbones(folder, {**weights, name: tensor}, {})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "weights_sha256": "0" * 64}))
    with pytest.raises(ValueError, match="different runs"):
        Backbones.load(folder)
    (folder / "config.json").write_text(json.dumps({**config, "format_version": 0}))
    with pytest.raises(ValueError, match=r"python -m matching\.tune"):
        Backbones.load(folder)


def test_a_stage1_of_other_backbones_is_refused(data, tmp_path):
    start = load_checkpoint(data / "start")
    start.config["backbone_sha256"] = "other"
    with pytest.raises(ValueError, match="trained on other backbones"):
        tune(start, [LowerMaps(data / "maps")], CONFIG, tmp_path, tmp_path / "run")
