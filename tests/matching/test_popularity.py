"""Popularity against loops over single numbers, its file, and what a bank is drawn from."""

import math

import numpy as np
import pytest
import torch

from matching.caption_inputs import PieceInputs
from matching.checkpoint import load_checkpoint, save_checkpoint
from matching.config import DiveConfig, VseInfinityConfig
from matching.encode_features import Matcher, embed_captions, embed_photos
from matching.encoded import Encoded, GridScores
from matching.features import Features
from matching.models.dive import Dive
from matching.models.vse_infinity import VseInfinity
from matching.popularity import POPULARITY_FILE, SHARE, SHARPNESS, Popularity
from matching.popularity_bank import main, make_bank
from matching.reranked import Reranked
from tests.matching.tiny_features import write_tiny_features


def unit(rows: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(rows, 6)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def by_loops(embedding: np.ndarray, bank: np.ndarray) -> float:
    cosines = [
        sum(float(a) * float(b) for a, b in zip(embedding, row, strict=True)) for row in bank
    ]
    mean = sum(math.exp(SHARPNESS * cosine) for cosine in cosines) / len(cosines)
    return SHARE * math.log(mean) / SHARPNESS


@pytest.mark.parametrize("chunk", [3, 6])  # few rows at once, and many
def test_popularity_equals_loops(monkeypatch, chunk):
    monkeypatch.setattr("matching.popularity._ROWS_A_CHUNK", chunk)
    popularity = Popularity(captions=unit(5, 1), photos=unit(7, 2))
    rows = unit(8, 3)
    for found, bank in (
        (popularity.of_photos(rows), popularity.captions),
        (popularity.of_captions(rows), popularity.photos),
    ):
        np.testing.assert_allclose(found, [by_loops(row, bank) for row in rows], atol=1e-6)
    assert not popularity.none().of_photos(rows).any()
    with pytest.raises(ValueError, match=r"shape \(n, 6\).*found \(8, 5\)"):
        popularity.of_photos(rows[:, :5])


def test_a_photo_that_is_near_everything_gives_way():
    """Both photos are as near to the caption; the first is near to every other caption, too."""
    captions = np.eye(6, dtype=np.float32)
    hub, own = np.full(6, 6**-0.5, np.float32), captions[0] * 6**-0.5
    own[1] = -math.sqrt(5 / 6)
    popularity = Popularity(captions, captions).of_photos(np.stack([hub, own]))
    assert hub @ captions[0] == pytest.approx(own @ captions[0]) and popularity[0] > popularity[1]


def test_the_final_score_takes_popularity_away():
    photos, captions = unit(4, 1), unit(8, 2)
    popularity = Popularity(unit(9, 3), unit(9, 4))
    sides = [np.zeros((2, 3), np.float32)] * 8
    encoded = Encoded(
        photos,
        np.zeros((4, 5, 3), np.float32),
        captions,
        sides,
        np.repeat(np.arange(4), 2),
        popularity=popularity,
    )

    def silent(photo_sides, caption_sides, mask) -> GridScores:
        return GridScores(np.zeros((len(photo_sides), len(caption_sides)), np.float32))

    directions = Reranked.of(encoded, silent, 8).directions(3.0)
    for p in range(4):
        for c in range(8):
            taken = by_loops(photos[p], popularity.captions)
            taken += by_loops(captions[c], popularity.photos)
            expected = 3.0 * (float(photos[p] @ captions[c]) - taken)
            differences = directions.by_photo[p] - directions.by_photo[p, 0]
            first = 3.0 * (
                float(photos[p] @ captions[0])
                - by_loops(photos[p], popularity.captions)
                - by_loops(captions[0], popularity.photos)
            )
            assert differences[c] == pytest.approx(expected - first, abs=1e-5)
    np.testing.assert_allclose(encoded.stage1, photos @ captions.T)  # the shortlist is as it was
    fold = encoded.folds(2)[1]
    np.testing.assert_allclose(fold.less_popularity, encoded.less_popularity[2:, 4:], atol=1e-6)


def test_banks_beside_the_weights(tmp_path):
    write_tiny_features(tmp_path / "features", train=20, val=4)
    torch.manual_seed(0)
    folder = tmp_path / "stage1"
    model = VseInfinity(VseInfinityConfig(dimension=12, hidden=16))
    save_checkpoint(folder, "vse_infinity", model.state_dict(), model.config, {})
    assert not load_checkpoint(folder).popularity
    flags = ["--features", str(tmp_path / "features"), "--size", "8"]
    assert main(["--stage1", str(folder), *flags]) == 0
    stored = load_checkpoint(folder)
    assert stored.popularity
    assert stored.popularity.captions.shape == stored.popularity.photos.shape == (8, 12)
    np.testing.assert_allclose(np.linalg.norm(stored.popularity.photos, axis=1), 1, atol=1e-3)
    path = folder / POPULARITY_FILE
    with pytest.raises(ValueError, match=f"{stored.sha256[:12]}, the weights beside it are 0123"):
        Popularity.beside(folder, "0123")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="popularity.npz cannot be read.*popularity_bank"):
        load_checkpoint(folder)


def test_a_bank_is_of_training_photos_and_captions_of_others(tmp_path):
    write_tiny_features(tmp_path, train=20, val=10)
    features = Features(tmp_path)
    torch.manual_seed(0)
    model = VseInfinity(VseInfinityConfig(dimension=12, hidden=16)).eval()
    stage1 = Matcher(model, PieceInputs())
    bank = make_bank(stage1, [features, features], 10, seed=1)
    assert bank.captions.shape == bank.photos.shape == (20, 12)
    train = features.photos_of("train")
    all_photos = embed_photos(stage1, features, train)
    shown = [int(np.abs(all_photos - row).max(1).argmin()) for row in bank.photos[:10]]
    assert len(set(shown)) == 10
    others = [c for photo in train if photo not in shown for c in features.captions_of(photo)]
    of_others = embed_captions(stage1, features, np.array(others))
    for row in bank.captions[:10]:
        assert np.abs(of_others - row).max(1).min() < 1e-5
    with pytest.raises(ValueError, match="20 training photos, 22 are needed"):
        make_bank(stage1, [features], 11, seed=1)
    sets = Dive(DiveConfig(dimension=12, hidden=16, slots=2, heads=2, head_dimension=8))
    with pytest.raises(ValueError, match="by cosine, not by smooth_chamfer"):
        make_bank(Matcher(sets, stage1.inputs), [features], 2, seed=1)
