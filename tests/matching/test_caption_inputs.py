"""Augmented captions keep their order, their ends and never become empty."""

import torch

from matching.caption_inputs import drop_word_ids, drop_words


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


def test_hit_words_are_masked_changed_or_cut_in_the_authors_shares():
    torch.manual_seed(0)
    ids = torch.arange(1, 12).expand(4000, -1).clone()  # <start> 1 ... 11
    mask_id = 5000
    changed = drop_word_ids(ids, 0.2, mask_id)
    inner = 4000 * 9  # the first and the last are never hit
    masked = (changed == mask_id).sum().item() / inner
    cut = (ids.numel() - (changed != 0).sum().item()) / inner
    other = ((changed > 11) & (changed != mask_id)).sum().item() / inner
    assert abs(masked - 0.10) < 0.01 and abs(cut - 0.08) < 0.01 and abs(other - 0.02) < 0.005
    assert (changed[:, 0] == 1).all()
    last = (changed != 0).sum(1) - 1
    assert (changed.gather(1, last[:, None]) == 11).all()


def test_without_a_mask_word_hit_words_are_only_cut():
    torch.manual_seed(0)
    ids = torch.arange(1, 12).expand(500, -1).clone()
    ids[0, 2:] = 0  # <start> and <end> alone
    kept = drop_word_ids(ids, 0.5, None)
    assert kept.max() == 11 and (kept[0] != 0).sum() == 2
    for row in kept:
        row = row[row != 0]
        assert (row.diff() > 0).all()
