"""Evaluation of two stages against a plain loop over all pairs."""

from types import SimpleNamespace

import numpy as np
import pytest

from matching.encoded import Encoded, GridScores, random_pair_gates, score_everything
from matching.metrics import evaluate_directions
from matching.ranking import Ranking
from matching.reranked import Reranked, evaluate_reranked, evaluate_stage1

PHOTOS, CAPTIONS_EACH, WIDTH = 12, 3, 6


def small() -> Encoded:
    rng = np.random.default_rng(2)
    owners = np.repeat(np.arange(PHOTOS), CAPTIONS_EACH)
    photos = rng.normal(size=(PHOTOS, WIDTH)).astype(np.float32)
    captions = (photos[owners] + 1.5 * rng.normal(size=(len(owners), WIDTH))).astype(np.float32)
    sides = rng.normal(size=(PHOTOS, 4, WIDTH)).astype(np.float32)
    words = [
        (sides[o].mean(0) + rng.normal(size=(1 + i % 4, WIDTH))).astype(np.float32)
        for i, o in enumerate(owners)
    ]
    return Encoded(photos, sides, captions, words, owners)


def pair_logit(photo: np.ndarray, words: np.ndarray) -> float:
    return float(photo.mean(0) @ words.mean(0))


def score(photos: np.ndarray, captions: np.ndarray, mask: np.ndarray) -> GridScores:
    logit = np.array(
        [[pair_logit(p, c[m]) for c, m in zip(captions, mask, strict=True)] for p in photos],
        np.float32,
    )
    gates = 1 / (1 + np.exp(-logit))
    words = np.where(mask[None], gates[..., None], 0)
    return GridScores(logit, words, np.repeat(gates[..., None], 4, -1))


def score_without_gates(*sides: np.ndarray) -> GridScores:
    return GridScores(score(*sides).logit)


def negative_distance(queries: np.ndarray, items: np.ndarray) -> np.ndarray:
    return -np.abs(queries[:, None] - items[None]).sum(-1)


def plain_ranks(encoded: Encoded, sizes: tuple[int, int], weight: float) -> tuple[list, list]:
    """Ranks of the photos' captions and of the captions' photos, from one query at a time."""
    owners = encoded.photo_of_caption
    stage1 = [
        [float(encoded.similarity(p[None], c[None])[0, 0]) for c in encoded.caption_embeddings]
        for p in encoded.photo_embeddings
    ]

    def final(p: int, c: int) -> float:
        logit = pair_logit(encoded.photo_sides[p], encoded.caption_sides[c])
        return logit + weight * stage1[p][c]

    def rank(items: int, size: int, first, second, true: set[int]) -> int:
        order = sorted(range(items), key=lambda i: (-first(i), i))
        order[:size] = sorted(order[:size], key=lambda i: (-second(i), i))
        return min(order.index(i) for i in true)

    i2t = [
        rank(
            len(owners),
            sizes[1],
            lambda c, p=p: stage1[p][c],
            lambda c, p=p: final(p, c),
            {c for c, owner in enumerate(owners) if owner == p},
        )
        for p in range(len(stage1))
    ]
    t2i = [
        rank(
            len(stage1),
            sizes[0],
            lambda p, c=c: stage1[p][c],
            lambda p, c=c: final(p, c),
            {int(owner)},
        )
        for c, owner in enumerate(owners)
    ]
    return i2t, t2i


@pytest.mark.parametrize(
    ("size", "photos", "captions"), [(1, 1, 1), (4, 4, 4), (100, 12, 36), ("25%", 3, 9)]
)
@pytest.mark.parametrize("similarity", [None, negative_distance])
def test_reranking_equals_a_plain_loop(size, photos, captions, similarity):
    plain = small()
    parts = [plain.photo_embeddings, plain.photo_sides, plain.caption_embeddings]
    parts += [plain.caption_sides, plain.photo_of_caption]
    encoded = Encoded(*parts, *([similarity] if similarity else []))
    reranked = Reranked.of(encoded, score, size)
    assert reranked.by_caption.listed.shape == (36, photos)
    assert reranked.by_photo.listed.shape == (12, captions)
    for weight in (0.0, 0.7, 5.0):
        i2t, t2i = plain_ranks(encoded, (photos, captions), weight)
        found = reranked.ranks(weight)
        assert (found[0].tolist(), found[1].tolist()) == (i2t, t2i)
        directions = reranked.directions(weight)
        assert reranked.retrieval(weight) == evaluate_directions(
            directions.by_photo, directions.by_caption, encoded.photo_of_caption
        )


def test_how_often_the_shortlist_holds_the_truth_both_ways():
    encoded = small()
    stage1 = encoded.photo_embeddings @ encoded.caption_embeddings.T
    found = Reranked.of(encoded, score, 4).found()
    photo_found = caption_found = 0
    for c, owner in enumerate(encoded.photo_of_caption):
        photo_found += sum(stage1[p, c] > stage1[owner, c] for p in range(PHOTOS)) < 4
    for p in range(PHOTOS):
        listed = sorted(range(36), key=lambda c, p=p: -stage1[p, c])[:4]
        caption_found += any(encoded.photo_of_caption[c] == p for c in listed)
    assert 0 < photo_found < 36 and 0 < caption_found < 12
    assert found["photo_found"] == pytest.approx(100 * photo_found / 36, abs=0.005)
    assert found["caption_found"] == pytest.approx(100 * caption_found / 12, abs=0.005)


def test_stage_1_is_computed_once():
    calls = []

    def counted(queries: np.ndarray, items: np.ndarray) -> np.ndarray:
        calls.append(len(queries))
        return queries @ items.T

    plain = small()
    encoded = Encoded(
        plain.photo_embeddings,
        plain.photo_sides,
        plain.caption_embeddings,
        plain.caption_sides,
        plain.photo_of_caption,
        counted,
    )
    Reranked.of(encoded, score, 3).choose_ranking()
    assert calls == [PHOTOS]


def test_all_pairs_and_gates():
    encoded = small()
    logits = score_everything(encoded, score)
    for p in range(PHOTOS):
        for c in range(len(encoded.caption_sides)):
            expected = pair_logit(encoded.photo_sides[p], encoded.caption_sides[c])
            assert abs(logits[p, c] - expected) < 1e-5
    gates = 1 / (1 + np.exp(-logits))
    true = encoded.photo_of_caption[None] == np.arange(PHOTOS)[:, None]
    found = Reranked.of(encoded, score, PHOTOS).gates()
    assert abs(found["word_matching"] - gates[true].mean()) < 1e-3
    assert abs(found["region_mismatched_hard"] - gates[~true].mean()) < 1e-3
    drawn = random_pair_gates(encoded, score, 4000)
    assert abs(drawn["word_mismatched"] - gates[~true].mean()) < 0.03


def test_positions_for_the_whole_caption_do_not_count_as_words():
    """Sides with an extra position at the front, gates of the words alone."""
    plain = small()
    longer = [np.concatenate([np.zeros((1, WIDTH), np.float32), s]) for s in plain.caption_sides]
    encoded = Encoded(
        plain.photo_embeddings,
        plain.photo_sides,
        plain.caption_embeddings,
        longer,
        plain.photo_of_caption,
    )

    def score_words(photos: np.ndarray, captions: np.ndarray, mask: np.ndarray) -> GridScores:
        return score(photos, captions[:, 1:], mask[:, 1:])

    assert Reranked.of(encoded, score_words).gates() == Reranked.of(plain, score).gates()


def test_a_scorer_without_gates():
    encoded = small()
    reranked = Reranked.of(encoded, score_without_gates, 5)
    assert reranked.by_photo.word_gates is None and reranked.by_caption.region_gates is None
    document = evaluate_reranked(reranked, score_without_gates, Ranking(1.0, 1.0, 0.0))
    assert document["gates"] == {}
    assert document["rerank"] == Reranked.of(encoded, score, 5).retrieval(1.0).to_json()


def test_the_document_has_what_others_rely_on():
    reranked = Reranked.of(small(), score, "25%")
    document = evaluate_reranked(reranked, score, Ranking(1.0, 1.0, 0.0), everything=True)
    for name in ("stage1", "rerank", "rerank_scorer_alone", "scorer_over_everything"):
        assert set(document[name]) == {"i2t", "t2i", "rsum"}
        assert set(document[name]["i2t"]) == {"r1", "r5", "r10", "medr", "meanr"}
    assert {"word_matching", "word_mismatched", "region_matching", "region_mismatched"} <= set(
        document["gates"]
    )
    assert (document["photos"], document["captions"]) == (12, 36)
    assert {k: document["shortlist"][k] for k in ("size", "photos", "captions")} == {
        "size": "25%",
        "photos": 3,
        "captions": 9,
    }
    assert "folds" not in document


def test_folds_have_their_own_shortlists():
    encoded = small()
    reranked = Reranked.of(encoded, score, "50%")
    document = evaluate_reranked(reranked, score, Ranking(0.7, 1.0, 0.0), True, folds=3)
    recalls = {"i2t": [], "t2i": []}
    for first in range(0, PHOTOS, 4):
        captions = slice(first * CAPTIONS_EACH, (first + 4) * CAPTIONS_EACH)
        part = Encoded(
            encoded.photo_embeddings[first : first + 4],
            encoded.photo_sides[first : first + 4],
            encoded.caption_embeddings[captions],
            encoded.caption_sides[captions],
            np.repeat(np.arange(4), CAPTIONS_EACH),
        )
        for way, ranks in zip(recalls, plain_ranks(part, (2, 6), 0.7), strict=True):
            recalls[way].append([100 * np.mean([rank < k for rank in ranks]) for k in (1, 5, 10)])
    for way, expected in recalls.items():
        found = [document["folds"]["rerank"][way][k] for k in ("r1", "r5", "r10")]
        np.testing.assert_allclose(found, np.mean(expected, 0), atol=0.0051)
    assert document["folds"]["shortlist"]["photos"] == 2
    assert (document["folds"]["count"], document["folds"]["photos"]) == (3, 4)
    assert document["rerank"] == reranked.retrieval(0.7).to_json()  # the whole split, as ever
    for name in ("stage1", "rerank_scorer_alone", "scorer_over_everything"):
        assert document["folds"][name]["rsum"] > document[name]["rsum"]


def test_stage_1_alone():
    plain = small()
    encoded = Encoded(
        plain.photo_embeddings, None, plain.caption_embeddings, None, plain.photo_of_caption
    )
    document = evaluate_stage1(encoded, folds=3)
    whole = evaluate_reranked(Reranked.of(plain, score), score, Ranking(1, 1, 0), folds=3)
    assert document["stage1"] == whole["stage1"]
    assert document["folds"]["stage1"] == whole["folds"]["stage1"]
    assert set(document) == {"photos", "captions", "stage1", "folds"}
    with pytest.raises(ValueError, match="no sides"):
        Reranked.of(encoded, score)


@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
def test_the_weight_of_stage_1_follows_the_scale_of_the_logits(scale):
    encoded = small()

    def scaled(*sides: np.ndarray) -> GridScores:
        return GridScores(np.float32(scale) * score(*sides).logit)

    reranked = Reranked.of(encoded, scaled, 12)
    ranking = reranked.choose_ranking()
    reference = Reranked.of(encoded, score, 12).choose_ranking()
    assert ranking.stage1_weight == pytest.approx(scale * reference.stage1_weight, rel=1e-3)
    assert ranking.slope * scale == pytest.approx(reference.slope, rel=1e-3)
    best = reranked.retrieval(ranking.stage1_weight).rsum
    assert best >= max(reranked.retrieval(0.0).rsum, reranked.retrieval(1e6 * scale).rsum)
    assert best > min(reranked.retrieval(0.0).rsum, reranked.retrieval(1e6 * scale).rsum)


def test_ties_go_to_the_smallest_weight():
    reranked = Reranked.of(small(), score, 1)  # one item: every weight ranks alike
    assert reranked.choose_ranking().stage1_weight == 0.0
    assert reranked.choose_ranking((8.0, 2.0, 4.0)).stage1_weight == 2.0


def test_of_weights_that_are_level_the_smallest_is_taken(monkeypatch):
    rsums = {0.0: 100.0, 1.0: 105.1, 2.0: 105.3, 4.0: 106.2}
    monkeypatch.setattr(Reranked, "retrieval", lambda _, w: SimpleNamespace(rsum=rsums[w]))
    assert Reranked.of(small(), score, 4).choose_ranking(list(rsums)).stage1_weight == 2.0


def test_what_does_not_fit_together_is_refused():
    plain = small()
    parts = [plain.photo_embeddings, plain.photo_sides, plain.caption_embeddings]
    with pytest.raises(ValueError, match="36 captions are embedded, but .* 35 captions have sides"):
        Encoded(*parts, plain.caption_sides[:-1], plain.photo_of_caption)
    with pytest.raises(ValueError, match="for neither"):
        Encoded(*parts, None, plain.photo_of_caption)
    with pytest.raises(ValueError, match=r"0\.\.11"):
        Encoded(*parts, plain.caption_sides, plain.photo_of_caption + 1)
