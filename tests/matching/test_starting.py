"""Where weights come from before the first step."""

import numpy as np
import pytest
import torch

from matching.config import CampConfig, DiveConfig, VseInfinityConfig
from matching.models.camp import Camp
from matching.models.dive import Dive
from matching.models.vse_infinity import VseInfinity
from matching.starting import start_from_checkpoint, start_from_stage1, train_only_fusion

SMALL = {"dimension": 12, "hidden": 16}


@pytest.mark.parametrize("system", ["camp", "dive"])
def test_a_system_starts_with_the_similarities_of_stage_1(system):
    torch.manual_seed(0)
    stage1 = VseInfinity(VseInfinityConfig(**SMALL)).eval()
    if system == "camp":
        model = Camp(CampConfig(**SMALL, key_dimension=8)).eval()
    else:
        model = Dive(DiveConfig(**SMALL, head_dimension=4, feed_forward=8)).eval()
    start_from_stage1(model, stage1, np.random.default_rng(0).normal(size=(50, 12)))
    regions = torch.randn(2, 36, 1400)
    with torch.no_grad():  # a full basis only turns the space: angles stay as they were
        theirs, ours = (
            torch.nn.functional.normalize(m.regions(regions), dim=-1) for m in (stage1, model)
        )
    torch.testing.assert_close(
        ours @ ours.transpose(1, 2), theirs @ theirs.transpose(1, 2), atol=1e-5, rtol=0
    )


def test_other_words_cannot_start_from_stage_1():
    stage1 = VseInfinity(VseInfinityConfig(**SMALL))
    words = {"word_encoder": "bigru", "vocabulary_size": 9, "word_dimension": 4}
    model = Camp(CampConfig(**SMALL, **words, key_dimension=8))
    with pytest.raises(ValueError, match="--start scratch"):
        start_from_stage1(model, stage1, np.random.default_rng(0).normal(size=(50, 12)))


def test_a_checkpoint_gives_what_fits_and_names_the_rest():
    settings = {**SMALL, "key_dimension": 8}
    first = Camp(CampConfig(**settings, fusion="none", gate="none", residual=False, score="cosine"))
    second = Camp(CampConfig(**settings))
    missing = start_from_checkpoint(second, first)
    assert any(name.startswith("score.") for name in missing)
    assert torch.equal(second.photo.key.weight, first.photo.key.weight)
    assert torch.equal(second.regions.linear.weight, first.regions.linear.weight)


def test_fusion_alone_is_trained():
    model = Camp(CampConfig(**SMALL, key_dimension=8))
    train_only_fusion(model)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {"photo.fusion.weight", "caption.fusion.weight", "score.0.weight"} <= trained
    assert not any(n.startswith(("regions", "words", "text")) or ".key." in n for n in trained)


def test_agreement_counts_where_it_joins_a_trained_model():
    before = Camp(CampConfig(**SMALL, key_dimension=8))
    new = Camp(CampConfig(**SMALL, key_dimension=8, score="mlp_agreement"))
    sides = (new.photo, new.caption)
    assert [passing.agreement_scale.item() for passing in sides] == [0, 0]
    missing = start_from_checkpoint(new, before)
    assert missing == ["photo.agreement_scale", "caption.agreement_scale"]
    assert [passing.agreement_scale.item() for passing in sides] == [1, 1]
    assert torch.equal(new.photo.key.weight, before.photo.key.weight)
