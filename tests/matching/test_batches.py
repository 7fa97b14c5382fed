"""Augmentation and grouping keep what they must."""

import numpy as np
import torch

from matching.batches import drop_regions, drop_words
from matching.config import CampConfig, VseInfinityConfig
from matching.models.camp import Camp
from matching.models.vse_infinity import VseInfinity
from matching.train_camp import confusable_groups, start_from_stage1


def test_dropped_words_leave_whole_words_in_order():
    torch.manual_seed(0)
    pieces = torch.zeros(50, 6, 8)
    for word in range(6):
        pieces[:, word, word + 1] = 1
    pieces[0, 1:] = 0  # a caption of one word
    for _ in range(20):
        kept = drop_words(pieces, 0.7)
        counts = (kept.sum(-1) > 0).sum(1)
        assert counts.min() >= 1 and counts[0] == 1
        for row, count in zip(kept, counts, strict=True):
            positions = row[:count].argmax(-1)
            assert (positions.diff() > 0).all()  # in their order, none twice
            assert (row[count:] == 0).all()


def test_dropped_regions_are_of_the_same_photo():
    torch.manual_seed(0)
    regions = torch.arange(3)[:, None, None] * 100 + torch.arange(36)[None, :, None].float()
    kept = drop_regions(regions, 0.3)
    assert (kept // 100 == torch.arange(3)[:, None, None]).all()
    assert all(len(set(row.flatten().tolist())) == kept.shape[1] for row in kept)


def test_groups_part_the_pool_and_hold_neighbours():
    angles = np.concatenate([centre + np.linspace(0, 0.1, 4) for centre in (0, 1, 2, 3)])
    embeddings = np.stack([np.cos(angles), np.sin(angles)], 1)
    shuffled = np.random.default_rng(0).permutation(16)
    groups = confusable_groups(embeddings[shuffled], 4)
    assert sorted(groups.ravel().tolist()) == list(range(16))
    for group in groups:
        assert len({int(shuffled[i]) // 4 for i in group}) == 1


def test_camp_starts_with_the_similarities_of_stage_1():
    torch.manual_seed(0)
    stage1 = VseInfinity(VseInfinityConfig(dimension=12, hidden=16)).eval()
    camp = Camp(CampConfig(dimension=12, key_dimension=8, hidden=16)).eval()
    start_from_stage1(camp, stage1, np.random.default_rng(0).normal(size=(50, 12)))
    regions = torch.randn(2, 36, 1400)
    with torch.no_grad():  # a full basis only turns the space: angles stay as they were
        theirs = torch.nn.functional.normalize(stage1.regions(regions), dim=-1)
        ours = camp.region_features(regions) / 12**0.5
    torch.testing.assert_close(
        ours @ ours.transpose(1, 2), theirs @ theirs.transpose(1, 2), atol=1e-5, rtol=0
    )
