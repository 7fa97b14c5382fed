"""Every form and ablation of CAMP: the equations, factored scores, padding, masks, gradients."""

import pytest
import torch

from matching.config import CampConfig
from matching.models.camp import Camp
from tests.matching.camp_loops import FORMS, MIXTURES, D, made, scored_by_loops

ALL = {**FORMS, **MIXTURES}
every_form = pytest.mark.parametrize("settings", ALL.values(), ids=ALL.keys())
LENGTHS, REGIONS = [5, 3, 2, 1], [4, 4, 3]


def features():
    generator = torch.Generator().manual_seed(6)
    v = torch.randn(3, 4, D, generator=generator)
    t = torch.randn(4, 5, D, generator=generator)
    return v, t, torch.arange(5) < torch.tensor(LENGTHS)[:, None]


def scored(camp, v, t, mask, region_mask=None):
    return camp(camp.photo_side_of(v), camp.caption_side_of(t), mask, region_mask)


def assert_same(ours, expected, tolerance=1e-5):
    for name, a, b in zip(expected._fields, ours, expected, strict=True):
        assert (a is None) == (b is None), name
        if b is not None:
            torch.testing.assert_close(
                a, b, atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )


def trimmed(scores, photo, caption, regions, words):
    """The pair of one photo and one caption without its padding, with a photo axis of one."""
    logit, word_attention, region_attention, word_gates, region_gates = (
        None if part is None else part[photo, caption][None] for part in scores
    )
    return type(scores)(
        logit,
        None if word_attention is None else word_attention[:, :words, :regions],
        None if region_attention is None else region_attention[:, :regions, :words],
        None if word_gates is None else word_gates[:, :words],
        None if region_gates is None else region_gates[:, :regions],
    )


@every_form
@torch.no_grad()
def test_plain_scores_equal_loops_over_single_numbers(settings):
    camp = made(settings)
    v, t, _ = features()
    for photo in range(2):
        ours = camp.score_plainly(v[photo, None], t[1, :3])
        for a, b in zip(ours, scored_by_loops(camp, v[photo], t[1, :3]), strict=True):
            assert (a is None) == (b is None)
            if b is not None:
                torch.testing.assert_close(a[0], torch.tensor(b), atol=1e-5, rtol=1e-5)


@every_form
@torch.no_grad()
def test_scores_of_all_pairs_equal_plain_scores(settings):
    """With padded words and padded regions; the padding is large, so that a leak is seen."""
    camp = made(settings)
    v, t, mask = features()
    region_mask = torch.arange(4) < torch.tensor(REGIONS)[:, None]
    v, t = v.masked_fill(~region_mask[..., None], 7.0), t.masked_fill(~mask[..., None], -5.0)
    scores = scored(camp, v, t, mask, region_mask)
    assert scores.logit.std() > 0.02, "a test on constant scores would prove nothing"
    for photo, regions in enumerate(REGIONS):
        for caption, words in enumerate(LENGTHS):
            expected = camp.score_plainly(v[photo, None, :regions], t[caption, :words])
            assert_same(trimmed(scores, photo, caption, regions, words), expected)
    if scores.word_gates is not None:
        assert (scores.word_gates * ~mask).abs().max() == 0
        assert (scores.region_gates * ~region_mask[:, None]).abs().max() == 0


@every_form
@torch.no_grad()
def test_no_region_mask_means_all_regions(settings):
    camp = made(settings)
    v, t, mask = features()
    everything = torch.ones(3, 4, dtype=torch.bool)
    assert_same(scored(camp, v, t, mask), scored(camp, v, t, mask, everything), 1e-6)


@every_form
@torch.no_grad()
def test_order_of_the_batch_and_groups_change_nothing(settings):
    camp = made(settings)
    v, t, mask = features()
    region_mask = torch.arange(4) < torch.tensor(REGIONS)[:, None]
    expected = scored(camp, v, t, mask, region_mask)
    photos, captions = torch.tensor([2, 0, 1]), torch.tensor([3, 1, 0, 2])
    grouped = scored(
        camp,
        torch.stack([v, v[photos]]),
        torch.stack([t, t[captions]]),
        torch.stack([mask, mask[captions]]),
        torch.stack([region_mask, region_mask[photos]]),
    )
    first, second = (
        type(expected)(*(None if part is None else part[i] for part in grouped)) for i in (0, 1)
    )
    shuffled = (None if part is None else part[photos][:, captions] for part in expected)
    assert_same(first, expected)
    assert_same(second, type(expected)(*shuffled))


@pytest.mark.parametrize("form", ["fast", "paper", "release", "w/o fusion", "base model"])
def test_gradients_of_the_scores(form):
    camp = made(FORMS[form], scale=1.0).double()
    generator = torch.Generator().manual_seed(1)
    v = torch.randn(2, 3, D, generator=generator, dtype=torch.double, requires_grad=True)
    t = torch.randn(2, 2, D, generator=generator, dtype=torch.double, requires_grad=True)
    mask = torch.tensor([[True, True], [True, False]])
    assert torch.autograd.gradcheck(lambda v, t: scored(camp, v, t, mask).logit, (v, t))


@every_form
def test_every_parameter_of_the_scorer_has_a_gradient(settings):
    camp = made(settings)
    v, t, mask = features()
    scored(camp, v, t, mask).logit.square().sum().backward()
    names = ("photo.", "caption.", "score.")
    for name, parameter in camp.named_parameters():
        if name.startswith(names):
            assert parameter.grad is not None, f"{name} is never used"


@torch.no_grad()
def test_the_base_model_is_an_embedder():
    camp = made(FORMS["base model"])
    generator = torch.Generator().manual_seed(2)
    regions = torch.randn(3, 4, 1400, generator=generator)
    region_mask = torch.arange(4) < torch.tensor(REGIONS)[:, None]
    hidden, pieces = torch.randn(2, 6, 384, generator=generator), torch.zeros(2, 3, 6)
    pieces[0, :3, :3], pieces[1, :2, 3:5] = torch.eye(3), torch.eye(2)
    captions = (hidden, torch.ones(2, 6, dtype=torch.bool), pieces)
    photos = camp.embed_photos(regions, region_mask)
    words, mask = camp.caption_side(*captions)
    expected = camp(camp.photo_side(regions, region_mask), words, mask, region_mask).logit
    assert photos.shape == (3, camp.embedding_width)
    assert photos.norm(dim=-1).tolist() == pytest.approx([1.0] * 3, abs=1e-5)
    cosines = camp.similarity(photos, camp.embed_captions(*captions))
    torch.testing.assert_close(cosines, expected, atol=1e-6, rtol=1e-5)
    assert mask.tolist() == [[True, True, True], [True, True, False]]


def test_other_forms_are_no_embedders():
    camp = made({})
    assert not hasattr(camp, "embedding_width")
    with pytest.raises(ValueError, match="messages 'cross_attention'.*base model"):
        camp.embed_photos(torch.zeros(1, 2, 1400))


@pytest.mark.parametrize("name", ["messages", "gate", "fusion", "aggregation", "score"])
def test_an_unknown_setting_is_named(name):
    with pytest.raises(ValueError, match=f"CAMP's {name} is 'sum': it must be one of"):
        Camp(CampConfig(dimension=D, key_dimension=4, **{name: "sum"}))


@pytest.mark.parametrize("without", [{"gate": "none"}, {"fusion": "none"}, {"messages": "none"}])
def test_the_agreement_needs_scalar_gates(without):
    with pytest.raises(ValueError, match="needs messages, fusion and gate 'scalar', found"):
        Camp(CampConfig(dimension=D, key_dimension=4, score="mlp_agreement", **without))


def test_the_inverse_temperature_belongs_to_the_cosine():
    for settings in ALL.values():
        camp = made(settings)
        assert hasattr(camp, "log_scale") == (camp.config.score == "cosine")
