"""What the published classifier sees, as a teacher: its numbers, its names, the loss, training."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from efficientnet_lite_pytorch import EfficientNet

from matching.batches import ClassDraw, TrainingSet
from matching.caption_inputs import PieceInputs
from matching.captions import CaptionedPhoto
from matching.checkpoint import load_checkpoint, save_checkpoint
from matching.class_names import caption_rows, class_captions, draw_classes
from matching.config import CampConfig, Training, VseInfinityConfig
from matching.features import (
    DatasetDescription,
    Features,
    Pieces,
    class_captions_file,
    class_shard,
)
from matching.files import sha256_of, write_array
from matching.image import IMAGE_SIZE
from matching.losses import agreement
from matching.lower_maps import LowerMaps, map_shard
from matching.models.backbones import Backbones
from matching.models.image_backbone import ImageBackbone, published_weights
from matching.models.image_classifier import NUM_CLASSES, PublishedClassifier
from matching.models.text_backbone import backbone_folder
from matching.photo_classes import classify
from matching.prepare import prepare
from matching.recipe import SystemRecipe
from matching.systems import is_embedder, make_system
from matching.text import CaptionReader
from matching.train import Job, train
from matching.tune import DEFAULTS, TunedStage1, TuningRecipe
from matching.tuning_set import TuningSet
from tests.matching.tiny_features import write_tiny_features

STAGE1 = VseInfinityConfig(dimension=16, hidden=16)


def softmax(values):
    total = sum(math.exp(v) for v in values)
    return [math.exp(v) / total for v in values]


def test_agreement_by_loops():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 4, generator=generator)
    known = 3 * torch.randn(2, 3, 4, generator=generator) - 4
    by_photo, by_class, weights = [], [], []
    for s, k in zip(scores.tolist(), known.tolist(), strict=True):
        for row, truth in zip(s, k, strict=True):
            pairs = zip(softmax(truth), softmax(row), strict=True)
            by_photo.append(-sum(p * math.log(q) for p, q in pairs))
        for c in range(4):
            truth, column = [row[c] for row in k], [row[c] for row in s]
            pairs = zip(softmax(truth), softmax(column), strict=True)
            weights.append(min(1.0, sum(math.exp(v) for v in truth)))
            by_class.append(-weights[-1] * sum(p * math.log(q) for p, q in pairs))
    expected = (sum(by_photo) / len(by_photo) + sum(by_class) / sum(weights)) / 2
    assert agreement(scores, known).item() == pytest.approx(expected, rel=1e-5)


def test_agreement_is_least_where_scores_are_those_of_the_classifier():
    known = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]]).log()
    least = agreement(known, known)
    for change in torch.randn(20, 1, 2, 3, generator=torch.Generator().manual_seed(1)):
        # A constant for a whole photo or class would change one of the directions alone.
        assert agreement(known + 0.5 * change, known) > least - 0.02
    assert agreement(-known, known) > least + 0.3


def test_classes_are_drawn_as_the_photos_suggest_and_at_random():
    sure = np.full((6, 50), -20.0, np.float32)
    sure[np.arange(6), [3, 3, 7, 9, 11, 13]] = 0
    drawn = [draw_classes(sure, 12, np.random.default_rng(seed)) for seed in range(40)]
    for classes in drawn:
        assert len(set(classes.tolist())) == 12
        assert {3, 7, 9, 11, 13} <= set(classes.tolist())
    assert set(range(50)) == set(np.concatenate(drawn).tolist())
    few = draw_classes(sure, 4, np.random.default_rng(0))
    assert len(set(few.tolist()) & {3, 7, 9, 11, 13}) >= 1 and len(set(few.tolist())) == 4


def test_captions_name_their_class():
    captions = class_captions()
    assert len(captions) == 5 * NUM_CLASSES
    rows = caption_rows(np.array([401, 1]), np.random.default_rng(0))
    assert "an accordion" in captions[rows[0]] and "a goldfish" in captions[rows[1]]


def test_classifier_is_the_published_one_over_parts_of_the_photo():
    torch.manual_seed(0)
    coarse = torch.rand(2, 3, 9, 9) * 255
    pixels = torch.nn.functional.interpolate(coarse, (IMAGE_SIZE, IMAGE_SIZE), mode="bilinear")
    backbone = ImageBackbone().eval()
    classifier = PublishedClassifier(backbone).eval()
    published = EfficientNet.from_name("efficientnet-lite2", image_size=IMAGE_SIZE)
    published.load_state_dict(published_weights())
    published.eval()
    with torch.inference_mode():
        maps = backbone.lower(pixels)
        found = classifier(maps)
        truth = published((pixels - 127) / 128)
        cells = backbone.cells(maps)[..., :1280]
        whole = classifier.classes(cells.mean(1))
        torch.testing.assert_close(whole, truth, atol=0.05, rtol=0.01)  # weights are rounded
        grid = cells.unflatten(1, (8, 8))
        parts = [grid, *(grid[:, y : y + 4, x : x + 4] for y in (0, 4) for x in (0, 4))]
        parts.append(grid[:, 2:6, 2:6])
        each = [classifier.classes(part.mean((1, 2))).softmax(-1) for part in parts]
    torch.testing.assert_close(found, torch.stack(each).mean(0).log(), atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Maps of eight photos, and a stage 1 to tune."""
    folder = tmp_path_factory.mktemp("classes")
    lines = [f'{{"file": "{i}.jpg", "split": "train", "captions": ["a dog"]}}' for i in range(8)]
    lines[6:] = [line.replace("train", "val") for line in lines[6:]]
    (folder / "captions.jsonl").write_text("\n".join(lines))
    photos = [CaptionedPhoto(f"{i}.jpg", "train" if i < 6 else "val", ("a dog",)) for i in range(8)]
    sha256 = sha256_of(folder / "captions.jsonl")
    DatasetDescription(sha256, "lower", photos).write(folder / "maps")
    maps = np.random.default_rng(0).normal(size=(8, 88, 16, 16)).astype(np.float16)
    write_array(map_shard(folder / "maps", "plain", 0), maps)
    assert classify(folder / "maps") == 8
    torch.manual_seed(1)
    weights = make_system("vse_infinity", STAGE1).state_dict()
    details = {"backbone_sha256": Backbones.published().sha256}
    save_checkpoint(folder / "start", "vse_infinity", weights, STAGE1, details)
    return folder


def test_classes_of_photos_are_kept_beside_their_maps(data):
    maps = LowerMaps(data / "maps")
    with torch.inference_mode():
        network = PublishedClassifier(ImageBackbone()).eval()
        expected = network(torch.from_numpy(maps.maps(np.arange(8), np.zeros(8, bool))).float())
    np.testing.assert_allclose(maps.classes, expected.numpy(), atol=2e-2)


def test_tuning_moves_all_parts_towards_the_names_of_the_classes(data, tmp_path):
    folders = [LowerMaps(data / "maps")]
    config = Training(**{**vars(DEFAULTS), "contrastive_weight": 0.0, "class_weight": 1.0})
    config = replace(config, groups=1, group_size=6, pool_size=6, classes_a_group=40)
    model = TunedStage1(Backbones.published(), load_checkpoint(data / "start").model, 6).eval()
    tuning_set = TuningSet(folders, config.classes_a_group)
    recipe = TuningRecipe(model, config, tuning_set, folders[0], tmp_path, {})
    batch = tuning_set.batch(np.arange(6), 1, [5])
    assert batch.classes.log_probabilities.shape == (1, 6, 40)
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-3)
    losses = []
    for _ in range(12):
        loss = recipe.loss(batch, 0)
        optimiser.zero_grad()
        loss.backward()
        for part in (model.image, model.text, model.stage1):
            assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in part.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert TuningSet(folders).batch(np.arange(6), 1, [5]).classes is None


def test_features_take_the_classes_along(data, tmp_path):
    out = tmp_path / "features"
    with pytest.raises(ValueError, match="--maps"):
        prepare(data / "captions.jsonl", tmp_path, out, classes=True)
    prepare(data / "captions.jsonl", tmp_path, out, maps=data / "maps", classes=True)
    features = Features(out)
    np.testing.assert_array_equal(features.classes, LowerMaps(data / "maps").classes)
    rows = np.array([2005, 0])
    found = features.class_captions(rows)
    reader = CaptionReader(backbone_folder() / "tokenizer.json")
    lengths = [len(reader.read(class_captions()[row]).piece_ids) for row in rows]
    assert found.piece_mask.sum(1).tolist() == lengths


def test_batch_asks_each_group_about_classes_of_its_own(tmp_path):
    features = _with_classes(tmp_path)
    data = TrainingSet([features], PieceInputs(), classes=ClassDraw(3, 10))
    samples = data.draw(1, 0, 1, "photos")
    batch = data.batch(samples, np.arange(12), [1, 0, 4])
    assert batch.classes.log_probabilities.shape == (3, 4, 10)
    assert len(batch.classes.captions[0]) == 30
    rng = np.random.default_rng([1, 0, 4])
    known = features.classes[samples.photos[:12]].astype(np.float32).reshape(3, 4, -1)
    for group in range(3):
        chosen = draw_classes(known[group], 10, rng)
        found = batch.classes.log_probabilities[group].numpy()
        np.testing.assert_array_equal(found, known[group][:, chosen])
    assert TrainingSet([features], PieceInputs()).batch(samples, np.arange(12)).classes is None


@pytest.mark.parametrize("system", ["vse_infinity", "camp"])
def test_the_loss_asks_each_photo_about_the_classes_of_its_group(system, tmp_path):
    features = _with_classes(tmp_path)
    settings = {
        "vse_infinity": STAGE1,
        "camp": CampConfig(dimension=16, key_dimension=8, hidden=16),
    }
    config = Training(groups=2, group_size=4, class_weight=0.7, classes_a_group=5)
    data = TrainingSet([features], PieceInputs(), classes=ClassDraw(2, 5))
    torch.manual_seed(0)
    model = make_system(system, settings[system]).eval()
    recipe = SystemRecipe(system, model, config, data, PieceInputs(), features, tmp_path, {})
    batch = data.batch(data.draw(1, 0, 1, "photos"), np.arange(8), [9])
    alone = torch.stack([_likeness(model, batch, pair // 5, pair % 5) for pair in range(40)])
    expected = 0.7 * agreement(alone.view(2, 4, 5), batch.classes.log_probabilities)
    assert recipe.loss(batch, 0).item() == pytest.approx(expected.item(), rel=1e-4)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(15):
        optimiser.zero_grad()
        loss = recipe.loss(batch, 0)
        loss.backward()
        optimiser.step()
    assert loss < 0.9 * expected


def _likeness(model, batch, photo, column):
    """Of one photo of a step and one class of its group, each read alone."""
    row = 5 * (photo // 4) + column
    hidden, mask, words = (part[[row]] for part in batch.classes.captions)
    length, count = int(mask.sum()), int((words.sum(-1) > 0).sum())
    caption = hidden[:, :length], mask[:, :length], words[:, :count, :length]
    regions = batch.regions[[photo]]
    if is_embedder(model):
        cosine = (model.embed_photos(regions) * model.embed_captions(*caption)).sum()
        return model.log_scale.exp() * cosine
    return model(model.photo_side(regions), *model.caption_side(*caption)).logit[0, 0]


def test_missing_classes_are_named(tmp_path):
    write_tiny_features(tmp_path / "features")
    data = TrainingSet([Features(tmp_path / "features")], PieceInputs(), classes=ClassDraw(1, 10))
    with pytest.raises(ValueError, match=r"matching\.photo_classes"):
        data.batch(data.draw(1, 0, 1, "photos"), np.arange(4))


def test_names_are_only_there_for_minilm(tmp_path):
    write_tiny_features(tmp_path / "features")
    config = Training(class_weight=1.0)
    heads = VseInfinityConfig(word_encoder="bert")
    job = Job("vse_infinity", heads, config, [Features(tmp_path / "features")], tmp_path, tmp_path)
    with pytest.raises(ValueError, match="minilm"):
        train(job)


def _with_classes(folder):
    """Tiny features whose photos show one class each, and random captions of all classes."""
    write_tiny_features(folder / "features")
    rng = np.random.default_rng(3)
    known = np.full((52, NUM_CLASSES), -9.0, np.float16)
    known[np.arange(52), rng.integers(NUM_CLASSES, size=52)] = -0.1
    write_array(class_shard(folder / "features", 0), known)
    count = len(class_captions())
    hidden = rng.normal(size=(3 * count, 384)).astype(np.float16)
    words = np.tile(np.array([-1, 0, -1], np.int8), count)
    ends = 3 * np.arange(1, count + 1)
    Pieces(hidden, words, ends).write(class_captions_file(folder / "features"))
    return Features(folder / "features")
