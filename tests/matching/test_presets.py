"""Every named configuration makes a system that trains, and carries its paper's numbers."""

import pytest

from matching import train
from matching.config import CampConfig, Training
from matching.presets import PRESETS, TABLE3
from tests.matching.tiny_features import write_tiny_features

SMALL = {
    "camp": ["--key-dimension", "8"],
    "dive": ["--head-dimension", "8", "--feed-forward", "16"],
    "mmca": ["--heads", "4", "--feed-forward", "16", "--filters", "16"],
}


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    write_tiny_features(folder, train=20, val=4)
    return folder


@pytest.fixture(scope="module")
def stage1(features, tmp_path_factory):
    return _train("vse_infinity", features, tmp_path_factory.mktemp("stage1"), None)


def _train(name, features, folder, stage1):
    preset = PRESETS[name]
    flags = ["--epochs", "1", "--groups", "2", "--group-size", "4"]
    flags += ["--dimension", "16", "--hidden", "16", *SMALL.get(preset.system, [])]
    if preset.training_config().pool_size:
        flags += ["--pool-size", "16"]
    if preset.training_config().start == "checkpoint":
        _train("paper_camp_release_1", features, folder, stage1)
        flags += ["--start-from", str(folder / "paper_camp_release_1")]
    if stage1 is not None:
        flags += ["--stage1", str(stage1)]
    out = folder / name
    places = ["--out", str(out), "--run", str(folder / f"run-{name}")]
    assert train.main([name, "--features", str(features), *places, *flags]) == 0
    assert (out / "model.safetensors").exists()
    return out


# One of each system, word encoder and stage; the smallest settings differ from these in values.
@pytest.mark.parametrize(
    "name",
    [
        "camp",
        "camp_base",
        "dive",
        "mmca",
        "scan_i2t_mean",
        "paper_vse_plus_plus",
        "paper_dive",
        "paper_camp_release_2",
    ],
)
def test_it_trains(name, features, stage1, tmp_path, capsys):
    _train(name, features, tmp_path, stage1)
    assert "best of 1 epochs" in capsys.readouterr().out


@pytest.mark.parametrize("name", PRESETS)
def test_settings_are_known(name):
    preset = PRESETS[name]
    preset.model_config(), preset.training_config()
    weights = ("contrastive_weight", "ranking_weight", "binary_weight")
    assert sum(getattr(preset.training_config(), w) for w in weights) > 0


def test_the_rows_of_table_3_are_settings_of_one_module():
    assert len(TABLE3) == 11
    full = (CampConfig(), PRESETS["camp"].training_config())
    made = [
        (PRESETS[f"camp_{n}"].model_config(), PRESETS[f"camp_{n}"].training_config())
        for n in TABLE3
    ]
    assert all(row != full for row in made) and len(set(made)) == len(made)


def test_recipes_of_the_papers():
    camp = PRESETS["paper_camp"].training_config()  # section 4.2
    assert (camp.optimiser, camp.learning_rate, camp.epochs, camp.decay_epoch) == (
        "adam",
        2e-4,
        40,
        15,
    )
    assert camp.binary_weight == 1 and camp.hardest
    dive = PRESETS["paper_dive"].training_config()
    assert (dive.group_size, dive.captions_a_photo, dive.epochs) == (200, 5, 80)
    vse = PRESETS["paper_vse_infinity_bigru"].training_config()
    assert (vse.group_size, vse.epochs, vse.decay_epoch, vse.all_negatives_epochs) == (
        128,
        25,
        15,
        1,
    )
    assert PRESETS["paper_mmca"].training_config().group_size == 64
    assert Training().margin == 0.2


def test_an_unknown_name_lists_the_known_ones(capsys):
    assert train.main(["camel", "--features", "x"]) == 2
    assert "camp_without_gates" in capsys.readouterr().out
