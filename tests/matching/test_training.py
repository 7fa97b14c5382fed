"""A run that is killed and started again ends with the files of an undisturbed run."""

import json
from pathlib import Path

import pytest

from matching import training
from matching.batches import TrainingSet
from matching.checkpoint import load_checkpoint
from matching.config import (
    CampConfig,
    CampTraining,
    VseInfinityConfig,
    VseInfinityTraining,
)
from matching.features import Features
from matching.train import train
from tests.matching.tiny_features import write_tiny_features

STAGE1 = VseInfinityConfig(dimension=16, hidden=16)
CAMP = CampConfig(dimension=16, key_dimension=8, hidden=16)
STAGE1_TRAINING = VseInfinityTraining(epochs=2, batch_size=8)
CAMP_TRAINING = CampTraining(epochs=2, groups=2, group_size=4, pool_size=16)


class Killed(BaseException):
    """Not an Exception: nothing may catch it, as nothing can catch kill -9."""


@pytest.fixture
def features(tmp_path) -> Path:
    folder = tmp_path / "features"
    write_tiny_features(folder)
    return folder


def run(features: Path, out: Path, camp: bool) -> list:
    data, validation = TrainingSet([features]), Features(features)
    if not camp:
        return train(
            "vse_infinity", STAGE1, STAGE1_TRAINING, data, validation, out / "vse", out / "run-vse"
        )
    stage1 = load_checkpoint(out.parent / "whole" / "vse", "vse_infinity")
    return train(
        "camp", CAMP, CAMP_TRAINING, data, validation, out / "camp", out / "run-camp", stage1
    )


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
    out = tmp_path / "out"
    data, validation = TrainingSet([features]), Features(features)
    arguments = (data, validation, out / "vse", out / "run")
    train("vse_infinity", STAGE1, STAGE1_TRAINING, *arguments)
    with pytest.raises(ValueError, match="other settings"):
        train("vse_infinity", STAGE1, VseInfinityTraining(epochs=3, batch_size=8), *arguments)


def test_a_damaged_checkpoint_is_named(features, tmp_path):
    out = tmp_path / "whole"
    run(features, out, camp=False)
    config = json.loads((out / "vse" / "config.json").read_text())
    weights = out / "vse" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="model.safetensors"):
        load_checkpoint(out / "vse", "vse_infinity")
    config["model"]["colour"] = 3
    (out / "vse" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="colour"):
        load_checkpoint(out / "vse", "vse_infinity")
