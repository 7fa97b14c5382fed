"""Two-stage ranking against a slow reference that scores each pair alone."""

import numpy as np
import pytest

from app.explanation import explain
from app.gallery_folder import Gallery
from app.retrieval import PHOTO_SHORTLIST, Retriever
from matching.engine import Engine
from matching.text import CaptionError

CAPTION = "two dogs on green grass"


def test_ranks_follow_the_pair_scores(retriever):
    found = retriever.find_photos(CAPTION, 12)
    assert [m.rank for m in found.matches] == list(range(1, 13))
    caption = retriever.engine.captions.read(CAPTION)
    embedding, sides = retriever.engine.encode_captions([caption])
    cosines = retriever.gallery.embeddings @ embedding[0]
    by_stage1 = sorted(range(len(cosines)), key=lambda i: (-cosines[i], i))[:PHOTO_SHORTLIST]
    scores = {}
    for photo in by_stage1:
        pair = retriever.engine.explain_pair(retriever.gallery_photo(photo).side, sides[0])
        similarity = cosines[photo] - _popularity(retriever, photo, embedding[0])
        scores[photo] = pair.logit + retriever.engine.ranking.stage1_weight * similarity
    best = sorted(by_stage1, key=lambda i: -scores[i])[:12]
    assert [m.photo for m in found.matches] == best
    for match in found.matches:
        assert match.score == pytest.approx(scores[match.photo], abs=2e-3)
        assert match.stage1_rank == by_stage1.index(match.photo) + 1
        assert 0 <= match.probability <= 1


def _popularity(retriever, photo: int, caption: np.ndarray) -> float:
    """By the equation, of photo and caption together."""
    banks = retriever.engine.popularity
    pairs = ((retriever.gallery.embeddings[photo], banks.captions), (caption, banks.photos))
    return sum(0.7 * np.log(np.exp(30.0 * (bank @ one)).mean()) / 30.0 for one, bank in pairs)


def test_photos_are_scored_alike_from_either_side(retriever):
    query = retriever.gallery_photo(3)
    for match in retriever.find_captions(query, 5).matches:
        explanation = explain(retriever.engine, query, match.caption)
        assert explanation.popularity > 0.05
        assert explanation.score == pytest.approx(match.score, abs=2e-2)


def test_stage_1_alone_is_sorted_by_cosine(retriever):
    found = retriever.find_photos(CAPTION, 474, rerank=False)
    scores = [m.score for m in found.matches]
    assert len(scores) == 474 and scores == sorted(scores, reverse=True)
    assert all(m.probability is None for m in found.matches)


def test_a_gallery_photo_finds_itself_and_its_captions(retriever):
    hits = 0
    for photo in range(0, 474, 20):
        query = retriever.gallery_photo(photo)
        assert retriever.find_similar(query, 1).matches[0].photo == photo
        found = retriever.find_captions(query, 10)
        hits += any(m.photo == photo for m in found.matches)
    assert hits >= 12  # of 24


def test_explanation_agrees_with_the_search(retriever):
    match = retriever.find_photos(CAPTION, 1).matches[0]
    explanation = explain(retriever.engine, retriever.gallery_photo(match.photo), CAPTION)
    assert explanation.score == pytest.approx(match.score, abs=2e-3)
    np.testing.assert_allclose(explanation.word_attention.sum(1), 1, atol=1e-5)
    assert explanation.word_gates.shape == (5,)


def test_long_and_empty_captions(retriever):
    assert "2,000 words" in retriever.find_photos("dog " * 2000, 3).note
    with pytest.raises(CaptionError):
        retriever.find_photos("  ", 3)
    assert retriever.find_photos("a dog", 3).note is None


@pytest.mark.parametrize("name", ["mmca", "dive-scan"])
def test_another_pair_ranks_by_its_own_similarity_and_scorer(small_gallery, tiny, name):
    engine = Engine(tiny / "engines" / name, "cpu")
    retriever = Retriever(engine, Gallery(small_gallery, engine))
    embedding, sides = engine.encode_captions([engine.captions.read(CAPTION)])
    assert len(sides[0]) == engine.extra_positions + 5
    embeddings = retriever.gallery.embeddings
    stage1 = [_slow_similarity(name, photo, embedding[0]) for photo in embeddings]
    scores = []
    for photo in range(7):
        pair = engine.explain_pair(retriever.gallery_photo(photo).side, sides[0])
        assert pair.word_gates is None and pair.region_gates is None
        scores.append(pair.logit + 2.0 * stage1[photo])
    found = retriever.find_photos(CAPTION, 7)
    assert len({round(score, 3) for score in scores}) > 3
    assert [m.photo for m in found.matches] == sorted(range(7), key=lambda i: -scores[i])
    for match in found.matches:
        assert match.stage1_score == pytest.approx(stage1[match.photo], abs=1e-4)
        assert match.score == pytest.approx(scores[match.photo], abs=1e-3)
        assert match.probability == pytest.approx(1 / (1 + np.exp(-match.score - 0.5)), abs=1e-4)
    query = retriever.gallery_photo(2)
    assert retriever.find_similar(query, 1).matches[0].photo == 2
    assert len(retriever.find_captions(query, 5).matches) == 5


def _slow_similarity(name: str, photo: np.ndarray, caption: np.ndarray) -> float:
    if name == "mmca":
        return float(photo @ caption)
    cosines = [[float(p @ c) for c in caption.reshape(2, 16)] for p in photo.reshape(2, 16)]
    total = 0.0  # smooth-Chamfer, alpha = 16
    for lines in (cosines, list(zip(*cosines, strict=True))):
        for line in lines:
            total += np.log(sum(np.exp(16 * cosine) for cosine in line)) / (2 * 16 * 2)
    return total
