"""Evaluation of two stages against a plain loop over all pairs."""

import numpy as np

from matching.encoded import (
    Encoded,
    GridScores,
    Reranked,
    evaluate_reranked,
    random_pair_gates,
    score_everything,
)
from matching.ranking import Ranking

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


def plain_recall_at_1(encoded: Encoded, size: int, weight: float) -> tuple[float, float]:
    cosine = encoded.photo_embeddings @ encoded.caption_embeddings.T

    def best(query_scores: list[float], final) -> int:
        listed = sorted(range(len(query_scores)), key=lambda i: (-query_scores[i], i))[:size]
        return max(listed, key=lambda i: (final(i), -i))

    i2t = t2i = 0
    for p in range(PHOTOS):
        found = best(
            cosine[p].tolist(),
            lambda c, p=p: (
                pair_logit(encoded.photo_sides[p], encoded.caption_sides[c]) + weight * cosine[p, c]
            ),
        )
        i2t += encoded.photo_of_caption[found] == p
    for c, owner in enumerate(encoded.photo_of_caption):
        found = best(
            cosine[:, c].tolist(),
            lambda p, c=c: (
                pair_logit(encoded.photo_sides[p], encoded.caption_sides[c]) + weight * cosine[p, c]
            ),
        )
        t2i += found == owner
    return 100 * i2t / PHOTOS, 100 * t2i / len(encoded.caption_sides)


def test_reranking_equals_a_plain_loop():
    encoded = small()
    for size in (1, 4, 12):
        reranked = Reranked.of(encoded, score, size)
        for weight in (0.0, 0.7, 5.0):
            result = reranked.retrieval(weight)
            i2t, t2i = plain_recall_at_1(encoded, size, weight)
            assert abs(result.i2t.r1 - i2t) < 0.01 and abs(result.t2i.r1 - t2i) < 0.01


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


def test_the_document_has_what_others_rely_on():
    reranked = Reranked.of(small(), score)
    document = evaluate_reranked(reranked, score, Ranking(1.0, 1.0, 0.0), everything=True)
    for name in ("stage1", "rerank", "rerank_camp_alone", "camp_over_everything"):
        assert set(document[name]) == {"i2t", "t2i", "rsum"}
        assert set(document[name]["i2t"]) == {"r1", "r5", "r10", "medr"}
    assert {"word_matching", "word_mismatched", "region_matching", "region_mismatched"} <= set(
        document["gates"]
    )
