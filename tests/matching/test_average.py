"""Between two checkpoints: the ends are the ends, and only what belongs together is averaged."""

from dataclasses import replace

import pytest
import torch

from matching.average import average
from matching.checkpoint import load_checkpoint, save_checkpoint
from matching.config import CampConfig, VseInfinityConfig
from matching.files import read_json
from matching.models.backbones import Backbones, save_backbones, tuned_parameters
from matching.systems import make_system
from matching.vocabulary import Vocabulary

STAGE1 = VseInfinityConfig(dimension=16, hidden=16)
SCORER = CampConfig(dimension=16, hidden=16, key_dimension=8)


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """A stage 1 on the published backbones, and one on others."""
    folder = tmp_path_factory.mktemp("ends")
    published = Backbones.published()
    weights = {n: p * 1.5 for n, p in tuned_parameters(published.image, published.text).items()}
    save_backbones(folder / "after" / "backbones", weights, {"captions_sha256": ["c"]})
    behind = Backbones.load(folder / "after" / "backbones").sha256
    for seed, (name, sha256) in enumerate([("before", published.sha256), ("after", behind)]):
        torch.manual_seed(seed)
        state = make_system("vse_infinity", STAGE1).state_dict()
        out = folder / name / "vse_infinity"
        details = {"backbone_sha256": sha256, "epoch": seed}
        save_checkpoint(out, "vse_infinity", state, STAGE1, details)
    return folder / "before" / "vse_infinity", folder / "after" / "vse_infinity"


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_all_weights_lie_between(ends, tmp_path, share):
    average(*ends, share, tmp_path)
    before, after, found = (load_checkpoint(f) for f in (*ends, tmp_path / "vse_infinity"))
    states = [checkpoint.model.state_dict() for checkpoint in (before, after, found)]
    for name, tensor in states[2].items():
        expected = (1 - share) * states[0][name] + share * states[1][name]
        torch.testing.assert_close(tensor, expected, atol=1e-3, rtol=1e-3)  # stored as fp16
    assert found.config["epoch"] == 1  # the record of the second one
    assert read_json(tmp_path / "backbones" / "config.json")["captions_sha256"] == ["c"]
    backbones = Backbones.load(tmp_path / "backbones")
    assert found.config["backbone_sha256"] == backbones.sha256
    assert found.config["averaged"]["weights_sha256"] == [before.sha256, after.sha256]
    published = Backbones.published()
    own = tuned_parameters(published.image, published.text)
    for name, parameter in tuned_parameters(backbones.image, backbones.text).items():
        expected = own[name] * (1 + 0.5 * share)
        torch.testing.assert_close(parameter, expected, atol=1e-3, rtol=2e-3)


def test_a_scorer_stays_behind_the_second_one(tmp_path):
    scorers = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        state = make_system("camp", SCORER).state_dict()
        details = {"backbone_sha256": f"backbones {seed}", "rankings": {"stage 1": {}}}
        save_checkpoint(tmp_path / str(seed), "camp", state, SCORER, details)
        scorers.append(load_checkpoint(tmp_path / str(seed)))
    average(tmp_path / "0", tmp_path / "1", 0.25, tmp_path / "out")
    found = load_checkpoint(tmp_path / "out" / "camp", "scorer")
    before, after = (scorer.model.state_dict() for scorer in scorers)
    for name, tensor in found.model.state_dict().items():
        expected = 0.75 * before[name] + 0.25 * after[name]
        torch.testing.assert_close(tensor, expected, atol=1e-3, rtol=1e-3)
    assert found.config["backbone_sha256"] == "backbones 1"
    assert "rankings" not in found.config  # chosen anew: the scores are others
    assert not (tmp_path / "out" / "backbones").exists()


def test_words_of_a_vocabulary_go_along(tmp_path):
    words = Vocabulary.build(["a dog in the snow"] * 5, with_mask=True)
    config = replace(SCORER, word_encoder="bigru", vocabulary_size=len(words), word_dimension=8)
    state = make_system("camp", config).state_dict()
    for name in ("one", "other"):
        save_checkpoint(tmp_path / name, "camp", state, config, {}, words)
    average(tmp_path / "one", tmp_path / "other", 0.5, tmp_path / "out")
    assert load_checkpoint(tmp_path / "out" / "camp").vocabulary is not None


def test_what_does_not_belong_together_is_named(ends, tmp_path):
    with pytest.raises(ValueError, match="share"):
        average(*ends, 1.5, tmp_path / "out")
    other = VseInfinityConfig(dimension=8, hidden=16)
    state = make_system("vse_infinity", other).state_dict()
    details = {"backbone_sha256": Backbones.published().sha256}
    save_checkpoint(tmp_path / "other", "vse_infinity", state, other, details)
    with pytest.raises(ValueError, match="different models"):
        average(ends[0], tmp_path / "other", 0.5, tmp_path / "out")
    same = make_system("vse_infinity", STAGE1).state_dict()
    save_checkpoint(tmp_path / "lost", "vse_infinity", same, STAGE1, {"backbone_sha256": "gone"})
    with pytest.raises(ValueError, match="other backbones"):
        average(ends[0], tmp_path / "lost", 0.5, tmp_path / "out")
    assert not (tmp_path / "out").exists()
