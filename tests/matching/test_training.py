"""A run that is killed and started again ends with the files of an undisturbed run."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from matching import training, weight_parts
from matching.checkpoint import load_checkpoint, save_checkpoint
from matching.config import CampConfig, Training, VseInfinityConfig
from matching.features import Features
from matching.presets import PRESETS
from matching.train import Job, _bert_weights, train
from matching.training import learning_rate_factor
from tests.matching.tiny_features import write_tiny_features

STAGE1 = VseInfinityConfig(dimension=16, hidden=16)
CAMP = CampConfig(dimension=16, key_dimension=8, hidden=16)
STAGE1_TRAINING = Training(**{**PRESETS["vse_infinity"].training, "epochs": 2, "group_size": 8})
CAMP_TRAINING = Training(
    **{**PRESETS["camp"].training, "epochs": 2, "groups": 2, "group_size": 4, "pool_size": 16}
)


class Killed(BaseException):
    """Not an Exception: nothing may catch it, as nothing can catch kill -9."""


@pytest.fixture
def features(tmp_path) -> Path:
    folder = tmp_path / "features"
    write_tiny_features(folder)
    return folder


def run(features: Path, out: Path, camp: bool, config: Training | None = None) -> list:
    data = [Features(features)]
    if not camp:
        config = config or STAGE1_TRAINING
        return train(Job("vse_infinity", STAGE1, config, data, out / "vse", out / "run-vse"))
    stage1 = load_checkpoint(out.parent / "whole" / "vse", "stage1")
    return train(Job("camp", CAMP, CAMP_TRAINING, data, out / "camp", out / "run-camp", stage1))


@pytest.mark.parametrize("kill_at", [1, 3, 5, 7])
def test_killed_and_resumed_is_the_same(features, tmp_path, monkeypatch, kill_at):
    monkeypatch.setattr(training, "_SAVE_EVERY_SECONDS", 0)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for camp in (False, True):
        undisturbed = run(features, whole, camp)
        with monkeypatch.context() as patch:
            step = training.Trainer._step

            def killing_step(self, batch, step=step):
                if self._progress.step == kill_at:
                    raise Killed
                return step(self, batch)

            patch.setattr(training.Trainer, "_step", killing_step)
            with pytest.raises(Killed):
                run(features, broken, camp)
        resumed = run(features, broken, camp)
        assert resumed == undisturbed
        name = "camp" if camp else "vse"
        for file in ("model.safetensors", "config.json"):
            assert (whole / name / file).read_bytes() == (broken / name / file).read_bytes()


def test_other_settings_are_refused(features, tmp_path):
    run(features, tmp_path, camp=False)
    with pytest.raises(ValueError, match="other settings"):
        other = Training(**{**PRESETS["vse_infinity"].training, "epochs": 3, "group_size": 8})
        run(features, tmp_path, camp=False, config=other)


def test_the_learning_rate_of_the_papers_drops_once():
    config = Training(schedule="step", epochs=40, decay_epoch=15)  # CAMP, section 4.2
    factors = [learning_rate_factor(config, step, 400) for step in range(400)]
    assert factors == [1.0] * 150 + [0.1] * 250


def test_a_system_of_the_wrong_role_is_refused(features, tmp_path):
    run(features, tmp_path / "whole", camp=False)
    with pytest.raises(ValueError, match="cannot be scorer"):
        load_checkpoint(tmp_path / "whole" / "vse", "scorer")


def test_a_damaged_checkpoint_is_named(features, tmp_path):
    out = tmp_path / "whole"
    run(features, out, camp=False)
    config = json.loads((out / "vse" / "config.json").read_text())
    weights = out / "vse" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="model.safetensors"):
        load_checkpoint(out / "vse")
    config["model"]["colour"] = 3
    (out / "vse" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="colour"):
        load_checkpoint(out / "vse")


def test_bert_starts_from_published_weights(tmp_path):
    names = {"bert.embeddings.LayerNorm.weight": torch.ones(768)}
    save_file(names, tmp_path / "bert.safetensors")
    weights, prefix = _bert_weights(tmp_path / "bert.safetensors")
    assert prefix == "bert." and weights.keys() == names.keys()
    with pytest.raises(ValueError, match="none.safetensors"):
        _bert_weights(tmp_path / "none.safetensors")


def test_large_weights_are_kept_in_parts(features, tmp_path, monkeypatch):
    run(features, tmp_path, camp=False)
    whole = load_checkpoint(tmp_path / "vse")
    content = (tmp_path / "vse" / "model.safetensors").read_bytes()
    monkeypatch.setattr(weight_parts, "PART_BYTES", len(content) // 11)
    details = {k: v for k, v in whole.config.items() if k in ("training", "backbone_sha256")}
    save_checkpoint(tmp_path / "vse", "vse_infinity", whole.model.state_dict(), STAGE1, details)
    parts = sorted((tmp_path / "vse").glob("model.safetensors*"))
    assert len(parts) == 12 and not (tmp_path / "vse" / "model.safetensors").exists()
    again = load_checkpoint(tmp_path / "vse")  # .10 comes after .9
    assert again.sha256 == whole.sha256
    (tmp_path / "vse" / "model.safetensors.3").unlink()
    with pytest.raises(ValueError, match="damaged"):
        load_checkpoint(tmp_path / "vse")


def test_weights_of_another_run_are_refused(features, tmp_path):
    run(features, tmp_path, camp=False)
    path = tmp_path / "vse" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "weights_sha256": "0" * 64}))
    with pytest.raises(ValueError, match="interrupted"):
        load_checkpoint(tmp_path / "vse")
