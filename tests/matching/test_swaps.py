"""Wrong captions differ in one place, and in a word that no caption of the photo has."""

import gzip
import json
from types import SimpleNamespace

import numpy as np
import pytest

from matching.attributes import attribute_pairs, attribute_test, main, score_pairs, set_sha256
from matching.captions import CaptionedPhoto
from matching.photos import FolderPhotos
from matching.popularity import Popularity
from matching.swaps import swap


def swaps(caption, captions=(), kinds=("colour", "number", "noun"), draws=60):
    found = [
        swap(caption, (caption, *captions), np.random.default_rng(i), kinds) for i in range(draws)
    ]
    return [s for s in found if s is not None]


def test_one_word_changes():
    caption = "Two brown dogs near a red car."
    for found in swaps(caption):
        was, now = caption.split(), found.text.split()
        different = [i for i in range(len(was)) if was[i] != now[i]]
        assert different == [found.word]
        assert now[found.word].strip(".").lower() == found.now != found.was
    assert {s.kind for s in swaps(caption)} == {"colour", "number", "noun"}


def test_what_another_caption_says_is_not_wrong():
    others = ["a blue bike", "a grey bus and three motorcycles", "trains, boats and planes"]
    words = {s.now for s in swaps("a car", others, ("noun",))}
    assert words == {"truck"}
    assert "gray" not in {s.now for s in swaps("a red car", others, ("colour",))}


def test_articles_plurals_and_capitals_fit():
    found = {s.text for s in swaps("An elephant", kinds=("noun",))}
    assert "A dog" in found
    assert "An dog" not in found
    assert {s.text for s in swaps("a phone", kinds=("noun",))} >= {"a laptop", "a book"}
    assert "sheep" in {s.now for s in swaps("dogs", kinds=("noun",))}
    assert "benches" in {s.now for s in swaps("chairs", kinds=("noun",))}
    assert any(s.text == "Black car" for s in swaps("Red car", kinds=("colour",)))
    assert any(s.text == "an apple" for s in swaps("a pizza", kinds=("noun",)))


def test_nothing_to_swap():
    assert swaps("people talk") == []
    assert swaps("a black and white photo of a man") == []
    assert swaps("a man and a woman") == []  # who is what is often not in the photo


def test_exchange_only_where_order_matters():
    texts = {s.text for s in swaps("A cat on a couch", kinds=("exchange",))}
    assert texts == {"A couch on a cat"}
    assert swaps("a bed and a desk", kinds=("exchange",)) == []


PHOTOS = [
    CaptionedPhoto(f"{i}.png", "test", ("two red cars near a dog", "cars")) for i in range(30)
]


def test_the_set_is_balanced_and_follows_from_the_seed():
    pairs = attribute_pairs(PHOTOS, 20)
    kinds = [pair.swap.kind for pair in pairs]
    assert sorted(kinds.count(kind) for kind in set(kinds)) == [6, 7, 7]
    assert len({pair.photo.file for pair in pairs}) == 20
    assert set_sha256(pairs) == set_sha256(attribute_pairs(PHOTOS, 20))
    assert set_sha256(pairs) != set_sha256(attribute_pairs(PHOTOS, 20, seed=6))
    with pytest.raises(ValueError, match="--limit"):
        attribute_pairs(PHOTOS, 40)


class RedScores:
    """Scores a caption by how red it is; the photo does not matter."""

    has_gates = False
    embedding_width = 1
    popularity = Popularity.none()

    class captions:  # noqa: N801
        @staticmethod
        def read(text):
            return text

    class ranking:  # noqa: N801
        @staticmethod
        def scores(logits, similarities):
            return logits + similarities

    def encode_captions(self, texts):
        red = np.array([["red" in text] for text in texts], np.float32)
        return red, [row[None] for row in red]

    def encode_photos(self, pixels):
        return np.ones((1, 1), np.float32), np.ones((1, 1, 1), np.float32)

    def similarity(self, photos, captions):
        return photos @ captions.T

    def score_grid(self, photos, captions, mask, outputs):
        return [-captions[None, :, 0, 0]]


@pytest.fixture
def without_photos(monkeypatch):
    monkeypatch.setattr("matching.attributes.open_photo", lambda *_: None)
    monkeypatch.setattr("matching.attributes.photo_pixels", lambda _: None)
    monkeypatch.setattr(
        "matching.attributes.encode_captions",
        lambda engine, _, texts: engine.encode_captions(texts),
    )
    monkeypatch.setattr(FolderPhotos, "read", lambda *_: b"")


class RedScoresOfEverySecondPhoto(RedScores):
    """The other photos score against red."""

    encoded = 0

    def encode_photos(self, pixels):
        self.encoded += 1
        side = np.full((1, 1, 1), (-1.0) ** self.encoded, np.float32)
        return np.ones((1, 1), np.float32), side

    def score_grid(self, photos, captions, mask, outputs):
        return [photos[:, 0] * captions[None, :, 0, 0]]


def test_the_other_photo_is_another_one(without_photos, tmp_path):
    pairs = attribute_pairs(PHOTOS, 4, kinds=("colour",))
    engine = RedScoresOfEverySecondPhoto()
    numbers = score_pairs(engine, pairs, FolderPhotos(tmp_path))
    np.testing.assert_array_equal(numbers.scorer_other_photo, -numbers.scorer)
    assert np.abs(numbers.scorer).sum() == 4


def test_counting(without_photos, tmp_path):
    pairs = attribute_pairs(PHOTOS, 9)
    document = attribute_test(pairs, score_pairs(RedScores(), pairs, FolderPhotos(tmp_path)))
    assert document["colour"]["stage1"] == 100
    assert document["colour"]["scorer"] == 0
    assert document["noun"]["stage1"] == 0  # equal scores are no success
    assert document["all"]["stage1"] == pytest.approx(33.3)
    assert document["all"]["final"] == 0
    assert document["all"]["scorer_other_photo"] == document["all"]["scorer"]  # blind to photos


def test_the_final_score_is_less_the_popularity_of_the_caption(without_photos, tmp_path):
    pairs = attribute_pairs(PHOTOS, 9)
    engine = RedScores()
    plain = score_pairs(engine, pairs, FolderPhotos(tmp_path))
    engine.popularity = SimpleNamespace(of_captions=lambda embeddings: 3 * embeddings[:, 0])
    numbers = score_pairs(engine, pairs, FolderPhotos(tmp_path))
    np.testing.assert_array_equal(numbers.stage1, plain.stage1)
    np.testing.assert_array_equal(numbers.final, plain.final - 3 * plain.stage1)
    assert numbers.stage1.any()


def test_command_names_what_is_missing(tmp_path, capsys):
    captions = tmp_path / "captions.jsonl.gz"
    with gzip.open(captions, "wt") as stream:
        stream.write(json.dumps({"file": "0.png", "split": "test", "captions": ["people"]}) + "\n")
    with pytest.raises(ValueError, match="'number': 1"):
        main(["--captions", str(captions), "--photos", str(tmp_path), "--pairs", "3"])
