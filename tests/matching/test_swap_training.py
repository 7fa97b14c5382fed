"""Training against captions with one wrong word."""

import math

import numpy as np
import pytest
import torch

from matching.batches import TrainingSet
from matching.caption_inputs import PieceInputs
from matching.checkpoint import load_checkpoint
from matching.config import CampConfig, Training, VseInfinityConfig
from matching.features import Features, swap_shard
from matching.losses import mean_gate_binary, swapped
from matching.presets import PRESETS
from matching.recipe import SystemRecipe
from matching.systems import make_system
from matching.train import Job, train
from tests.matching.tiny_features import write_tiny_features


@pytest.fixture
def features(tmp_path):
    write_tiny_features(tmp_path / "features")
    return Features(tmp_path / "features")


def test_loss_by_hand():
    true, wrong, gates = [2.0, -1.0], [0.5, 1.0], [0.25, 0.9]
    expected = 0.0
    for t, w, g in zip(true, wrong, gates, strict=True):
        expected += math.log(1 + math.exp(w - t)) / 2  # true above wrong
        expected -= 0.5 * math.log(1 - 1 / (1 + math.exp(-w))) / 2  # wrong is a mismatch
        expected -= 0.5 * math.log(1 - g) / 2  # its wrong word takes no part
    found = swapped(*(torch.tensor(values) for values in (true, wrong, gates)))
    assert found.item() == pytest.approx(expected, rel=1e-5)
    assert swapped(torch.tensor([40.0]), torch.tensor([-40.0]), None).item() < 1e-6


def test_positive_gates_weigh_more():
    gates = torch.tensor([[0.7, 0.2], [0.1, 0.6]])
    matching = -(math.log(0.7) + math.log(0.6)) / 2
    mismatched = -(math.log(0.8) + math.log(0.9)) / 2
    expected = (3 * matching + mismatched) / 4
    assert mean_gate_binary(gates, 3.0).item() == pytest.approx(expected, rel=1e-5)


def test_pairs_across_groups_count_among_the_mismatched():
    gates, easy = torch.tensor([[0.7, 0.2], [0.1, 0.6]]), torch.tensor([0.3, 0.05])
    matching = -(math.log(0.7) + math.log(0.6)) / 2
    hard = -(math.log(0.8) + math.log(0.9)) / 2
    rest = -(math.log(0.7) + math.log(0.95)) / 2
    expected = (2 * matching + 0.3 * hard + 0.7 * rest) / 3
    assert mean_gate_binary(gates, 2.0, easy, 0.3).item() == pytest.approx(expected, rel=1e-5)


def test_gates_across_groups_are_those_of_the_pairs_alone():
    torch.manual_seed(0)
    camp = make_system("camp", CampConfig(dimension=16, key_dimension=8, hidden=16)).eval()
    recipe = SystemRecipe.__new__(SystemRecipe)
    recipe.model, recipe._config = camp, Training(groups=2, group_size=3, gate_hard=0.5)
    photos = camp.photo_side_of(torch.randn(6, 36, 16))
    captions = camp.caption_side_of(torch.randn(6, 5, 16))
    mask = torch.arange(5) < torch.tensor([5, 4, 3, 2, 5, 1])[:, None]
    words, regions = recipe._gates_across_groups(photos, captions, mask.view(2, 3, 5), None)
    for photo in range(6):
        other = (photo + 3) % 6  # the same place of the other group
        alone = camp(
            photos[[photo]],
            captions[[other]][:, : mask[other].sum()],
            mask[[other]][:, mask[other]],
        )
        assert words[photo].item() == pytest.approx(alone.word_gates.mean().item(), abs=1e-5)
        assert regions[photo].item() == pytest.approx(alone.region_gates.mean().item(), abs=1e-5)
    recipe._config = Training(groups=1, group_size=6, gate_hard=0.5)
    with pytest.raises(ValueError, match="two groups"):
        recipe._gates_across_groups(photos, captions, mask.view(1, 6, 5), None)


def test_batch_has_the_wrong_version_of_each_caption_that_has_one(features):
    data = TrainingSet([features], PieceInputs(), swaps=True)
    samples = data.draw(1, 0, 1, "photos")
    members = np.arange(12)
    batch = data.batch(samples, members)
    chosen = samples.captions[members, 0]
    # The first caption of a photo has two words, the second has three and no wrong version.
    assert batch.swaps.photos.tolist() == np.flatnonzero(chosen == 0).tolist()
    assert (batch.swaps.changed == 1).all()
    own = batch.captions[0][batch.swaps.photos][:, :4]
    torch.testing.assert_close(batch.swaps.captions[0], -own)
    assert TrainingSet([features], PieceInputs()).batch(samples, members).swaps is None


def test_camp_learns_to_tell_the_wrong_version(features, tmp_path):
    small = {"epochs": 1, "group_size": 8}
    stage1 = Training(**{**PRESETS["vse_infinity"].training, **small})
    heads = VseInfinityConfig(dimension=16, hidden=16)
    train(Job("vse_infinity", heads, stage1, [features], tmp_path / "vse", tmp_path / "run-vse"))
    small = {"epochs": 8, "groups": 2, "group_size": 4, "pool_size": 16, "learning_rate": 3e-3}
    told = {}
    for weight in (0.0, 2.0):
        config = {**PRESETS["camp_swaps"].training, **small, "swap_weight": weight}
        out = tmp_path / f"camp-{weight}"
        first = load_checkpoint(tmp_path / "vse", "stage1")
        camp = CampConfig(dimension=16, key_dimension=8, hidden=16)
        train(Job("camp", camp, Training(**config), [features], out, out / "run", first))
        told[weight] = _told_apart(load_checkpoint(out).model, features)
    assert told[2.0] > max(0.8, told[0.0])


def _told_apart(model, features):
    """How often the caption scores above its wrong version, of the training photos."""
    photos = features.photos_of("train")
    captions = features.caption_starts[photos]
    regions = torch.from_numpy(features.regions(photos)).float()
    logits = []
    with torch.inference_mode():
        for found in (features.pieces(captions), features.swapped(captions)):
            arrays = (found.hidden.astype(np.float32), found.piece_mask, found.word_pieces)
            sides, mask = model.caption_side(*(torch.from_numpy(a) for a in arrays))
            sides, mask = sides[:, None], mask[:, None]
            logits.append(model(model.photo_side(regions)[:, None], sides, mask).logit.flatten())
    return (logits[0] > logits[1]).float().mean().item()


def test_missing_wrong_captions_are_named(features):
    swap_shard(features.folder, 0).unlink()
    data = TrainingSet([features], PieceInputs(), swaps=True)
    with pytest.raises(ValueError, match=r"swaps-00000\.npz"):
        data.batch(data.draw(1, 0, 1, "photos"), np.arange(4))
