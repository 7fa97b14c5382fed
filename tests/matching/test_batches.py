"""Samples of an epoch, groups and augmentation keep what they must."""

import numpy as np
import pytest
import torch

from matching.batches import TrainingSet, drop_regions
from matching.caption_inputs import PieceInputs, WordIdInputs, caption_text
from matching.features import Features
from matching.recipe import confusable_groups
from matching.vocabulary import Vocabulary
from tests.matching.tiny_features import write_tiny_features


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    folders = [tmp_path_factory.mktemp("features") for _ in range(2)]
    for folder, train in zip(folders, (10, 6), strict=True):
        write_tiny_features(folder, train=train, val=4)
    return [Features(folder) for folder in folders]


def test_dropped_regions_are_of_the_same_photo():
    torch.manual_seed(0)
    regions = torch.arange(3)[:, None, None] * 100 + torch.arange(36)[None, :, None].float()
    kept, mask = drop_regions(regions, None, 0.3)
    assert mask is None
    assert (kept // 100 == torch.arange(3)[:, None, None]).all()
    assert all(len(set(row.flatten().tolist())) == kept.shape[1] for row in kept)


def test_a_photo_never_loses_its_last_region():
    torch.manual_seed(0)
    regions = torch.randn(4, 10, 2)
    mask = torch.arange(10)[None] < torch.tensor([1, 2, 5, 10])[:, None]
    for _ in range(20):
        kept, kept_mask = drop_regions(regions, mask, 0.9)
        assert kept_mask.any(1).all()
        assert torch.isin(kept[kept_mask], regions[mask]).all()


def test_groups_part_the_pool_and_hold_neighbours():
    angles = np.concatenate([centre + np.linspace(0, 0.1, 4) for centre in (0, 1, 2, 3)])
    embeddings = np.stack([np.cos(angles), np.sin(angles)], 1)
    shuffled = np.random.default_rng(0).permutation(16)
    groups = confusable_groups(embeddings[shuffled], 4)
    assert sorted(groups.ravel().tolist()) == list(range(16))
    for group in groups:
        assert len({int(shuffled[i]) // 4 for i in group}) == 1


def test_an_epoch_of_photos_draws_captions_of_each_photo(datasets):
    data = TrainingSet(datasets, PieceInputs())
    assert len(data) == 16 and data.num_samples("photos") == 16
    counts = [1 + i % 2 for i in range(10)] + [1 + i % 2 for i in range(6)]
    seen = set()
    for epoch in range(12):
        samples = data.draw(seed=3, epoch=epoch, captions_a_photo=1, epoch_of="photos")
        assert (samples.photos == np.arange(16)).all()
        assert all(0 <= c < n for c, n in zip(samples.captions[:, 0], counts, strict=True))
        seen |= set(enumerate(samples.captions[:, 0].tolist()))
    assert len(seen) == sum(counts)  # every caption has its turn
    again = data.draw(seed=3, epoch=11, captions_a_photo=1, epoch_of="photos")
    assert (again.captions == samples.captions).all()


def test_several_captions_a_photo_are_different_ones_first(datasets):
    data = TrainingSet(datasets, PieceInputs())
    samples = data.draw(seed=3, epoch=0, captions_a_photo=3, epoch_of="photos")
    for photo, captions in enumerate(samples.captions.tolist()):
        count = 1 + (photo if photo < 10 else photo - 10) % 2
        assert set(captions[:count]) == set(range(count)) and captions[-1] in range(count)


def test_an_epoch_of_captions_has_every_caption_once(datasets):
    data = TrainingSet(datasets, PieceInputs())
    samples = data.draw(seed=3, epoch=0, captions_a_photo=1, epoch_of="captions")
    pairs = list(zip(samples.photos.tolist(), samples.captions[:, 0].tolist(), strict=True))
    assert len(pairs) == len(set(pairs)) == data.num_samples("captions") == 24


@pytest.mark.parametrize("kind", ["pieces", "words"])
def test_a_batch_holds_regions_and_captions_of_its_members(datasets, kind):
    vocabulary = Vocabulary.build(["a dog", "two big dogs"] * 4)
    inputs = PieceInputs() if kind == "pieces" else WordIdInputs(vocabulary)
    data = TrainingSet(datasets, inputs)
    samples = data.draw(seed=3, epoch=0, captions_a_photo=2, epoch_of="photos")
    members = np.array([12, 3, 15, 0])
    batch = data.batch(samples, members)
    for row, member in enumerate(members.tolist()):
        source, photo = (0, member) if member < 10 else (1, member - 10)
        dataset = datasets[source]
        expected = dataset.regions(np.array([photo]))[0].astype(np.float32)
        np.testing.assert_array_equal(batch.regions[row].numpy(), expected)
        for place in range(2):
            caption = dataset.captions_of(photo)[samples.captions[member, place]]
            arrays = inputs.arrays(dataset, np.array([caption]))
            for ours, alone in zip(batch.captions, arrays, strict=True):
                ours = ours[2 * row + place].numpy()
                inside = tuple(slice(n) for n in alone.shape[1:])
                np.testing.assert_array_equal(ours[inside], alone[0])
                assert ours.astype(float).sum() == pytest.approx(alone[0].astype(float).sum())


def test_captions_are_found_by_their_number(datasets):
    texts = [c for photo in datasets[0].photos for c in photo.captions]
    assert [caption_text(datasets[0], i) for i in range(len(texts))] == texts
