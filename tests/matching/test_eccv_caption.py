"""ECCV Caption and CxC figures against plain loops and against PyPI's eccv_caption."""

import importlib.util
import json
from types import SimpleNamespace

import eccv_caption
import numpy as np
import pytest

from matching.eccv_caption import (
    CocoTruth,
    Truth,
    evaluate_coco,
    evaluate_matrices,
    evaluate_rankings,
    precision_figures,
    rank_items,
    recalls,
    recalls_inside,
)
from matching.ensemble import Directions
from matching.metrics import evaluate_directions, evaluate_folds

# The package's R-Precision comes only together with its mAP@R; asked alone, it returns nothing.
WANTED = ("coco_1k_recalls", "coco_5k_recalls", "cxc_recalls", "eccv_map_at_r", "eccv_rprecision")


def of_the_package(i2t: dict, t2i: dict, package=None) -> dict:
    package = package or eccv_caption.Metrics()
    found = package.compute_all_metrics(i2t, t2i, (*WANTED, "eccv_r1"), (1, 5, 10))
    for k in (5, 10):  # with mAP@R the package leaves these out
        found[f"eccv_r{k}"] = package.eccv_recalls({"i2t": i2t, "t2i": t2i}, "all", K=k)
    return found


def assert_equal_figures(ours: dict, theirs: dict) -> None:
    assert set(ours) == set(theirs) and len(ours) == 14
    for name, ways in theirs.items():
        for way, fraction in ways.items():
            assert ours[name][way] == pytest.approx(100 * fraction, abs=1e-9), (name, way)


def plain_figures(ranking: list[int], true: list[int]) -> tuple[float, float]:
    """mAP@R and R-Precision of one query, as the paper writes them."""
    total = 0.0
    for r in range(1, len(true) + 1):
        if ranking[r - 1] in true:
            total += sum(item in true for item in ranking[:r]) / r
    return total / len(true), sum(item in true for item in ranking[: len(true)]) / len(true)


def test_precision_and_recall_equal_a_plain_loop():
    rng = np.random.default_rng(0)
    rankings = {q: (100 + rng.permutation(30)).tolist() for q in range(20)}
    truth = {
        q: (100 + rng.choice(30, rng.integers(1, 15), replace=False)).tolist() for q in range(19)
    }
    figures = [plain_figures(rankings[q], true) for q, true in truth.items()]
    truth[19] = []  # no positive: left out
    found = precision_figures(rankings, truth)
    expected = 100 * np.mean(figures, 0)
    np.testing.assert_allclose([found["map_at_r"], found["rprecision"]], expected, atol=1e-9)
    assert found["map_at_r"] < found["rprecision"]
    for k, share in recalls(rankings, truth).items():
        hits = [any(item in truth[q] for item in rankings[q][:k]) for q in range(19)]
        assert share == pytest.approx(100 * sum(hits) / 19)
    by_hand = precision_figures({1: [7, 8, 9, 6]}, {1: [7, 9, 5]})  # hits at 1 and 3 of R = 3
    assert by_hand["map_at_r"] == pytest.approx(100 * (1 + 2 / 3) / 3)
    assert by_hand["rprecision"] == pytest.approx(100 * 2 / 3)


def rankings_with_signal(queries, items: np.ndarray, truths: list, depth: int, rng) -> dict:
    """The first items of random rankings in which some positives stand near the top."""
    rankings = {}
    for query in queries:
        positives = sorted(set().union(*(truth.get(query, ()) for truth in truths)))
        drawn = items[rng.integers(0, len(items), depth)]
        places = np.concatenate(
            [np.arange(depth, dtype=float), rng.exponential(25, len(positives))]
        )
        mixed = np.concatenate([drawn, positives])[np.argsort(places)]
        rankings[query] = list(dict.fromkeys(mixed.tolist()))  # each item once, in order
    return rankings


def test_the_whole_coco_test_equals_the_package():
    truth = CocoTruth.bundled()
    rng = np.random.default_rng(1)
    captions, photos = truth.caption_ids, np.array(sorted(truth.coco.i2t))
    assert (len(photos), len(captions), len(truth.cxc.t2i)) == (5000, 25000, 24972)
    assert (len(truth.eccv.i2t), len(truth.eccv.t2i)) == (1261, 1332)
    # Deep enough for ten items of each fold, and for 48 positives: longer ones give the same.
    parts = (truth.coco, truth.cxc, truth.eccv)
    i2t = rankings_with_signal(photos.tolist(), captions, [p.i2t for p in parts], 150, rng)
    t2i = rankings_with_signal(captions.tolist(), photos, [p.t2i for p in parts], 150, rng)
    ours = evaluate_rankings(i2t, t2i, truth)
    assert 5 < ours["eccv_map_at_r"]["i2t"] < 95 and 5 < ours["coco_1k_r1"]["t2i"] < 95
    assert_equal_figures(ours, of_the_package(i2t, t2i))


def test_a_perfect_coco_ranking_misses_a_little_of_cxc():
    truth = CocoTruth.bundled()
    coco = truth.coco
    captions = {photo: [*true, *range(-5, 0)] for photo, true in coco.i2t.items()}
    photos = {caption: [*true, *range(-9, 0)] for caption, true in coco.t2i.items()}
    assert recalls(captions, coco.i2t)[1] == recalls(photos, coco.t2i)[1] == 100
    assert recalls(captions, truth.cxc.i2t)[5] == 100
    assert recalls(photos, truth.cxc.t2i)[1] == pytest.approx(99.996, abs=0.001)


class SmallTest:
    """Sixty photos with five captions each, in the files and the class of the package."""

    def __init__(self, folder):
        rng = np.random.default_rng(2)
        self.photo_ids = rng.permutation(np.arange(1000, 1060))
        self.caption_ids = rng.permutation(np.arange(5000, 5300))
        owners = np.repeat(self.photo_ids, 5)
        own = {int(c): [int(p)] for c, p in zip(self.caption_ids, owners, strict=True)}
        more = {
            c: own[c] + rng.choice(np.setdiff1d(self.photo_ids, own[c]), 3, False).tolist()
            for c in list(own)[::7]
        }
        cxc = {c: more.get(c, own[c]) for c in list(own)[:-4]}
        self.package = eccv_caption.Metrics()
        for name, t2i in (("original", own), ("cxc", cxc), ("eccv", more)):
            i2t: dict[int, list[int]] = {}
            for caption, photos in t2i.items():
                for photo in photos:
                    i2t.setdefault(photo, []).append(caption)
            paths = [
                folder / f"{name}_{way}.json" for way in ("image_to_caption", "caption_to_image")
            ]
            for path, document in zip(paths, (i2t, t2i), strict=True):
                path.write_text(json.dumps(document))
            setter = {"original": "set_coco_gts"}.get(name, f"set_{name}_gts")
            getattr(self.package, setter)(*map(str, paths))
        np.save(folder / "coco_test_ids.npy", self.caption_ids)
        self.package.coco_ids = self.caption_ids
        self.truth = CocoTruth.read(folder)
        true = owners[None] == self.photo_ids[:, None]
        noise = rng.normal(size=(2, *true.shape))
        # Coarse steps: many ties.
        self.by_photo, self.by_caption = np.round(2 * (true + 0.6 * noise)).astype(np.float32)


@pytest.fixture
def small(tmp_path):
    return SmallTest(tmp_path)


def test_full_rankings_of_matrices_equal_the_package(small):
    i2t = rank_items(small.by_photo, small.photo_ids, small.caption_ids)
    t2i = rank_items(small.by_caption.T, small.caption_ids, small.photo_ids)
    for row in range(3):
        order = sorted(range(300), key=lambda c, row=row: (-small.by_photo[row, c], c))
        assert i2t[small.photo_ids[row]].tolist() == small.caption_ids[order].tolist()
    theirs = of_the_package(
        {q: r.tolist() for q, r in i2t.items()},
        {q: r.tolist() for q, r in t2i.items()},
        small.package,
    )
    assert_equal_figures(evaluate_rankings(i2t, t2i, small.truth), theirs)
    matrices = (small.by_photo, small.by_caption, small.photo_ids, small.caption_ids)
    assert_equal_figures(evaluate_matrices(*matrices, small.truth), theirs)
    # Photos and captions in another order, without ties: the ids say which is which.
    rng = np.random.default_rng(3)
    unique = small.by_photo + rng.permutation(small.by_photo.size).reshape(60, 300) / 1e5
    rows, columns = rng.permutation(60), rng.permutation(300)
    mixed = unique[np.ix_(rows, columns)]
    straight = evaluate_matrices(unique, unique, *matrices[2:], small.truth)
    ids = (small.photo_ids[rows], small.caption_ids[columns])
    for name, ways in evaluate_matrices(mixed, mixed, *ids, small.truth).items():
        assert ways == pytest.approx(straight[name]), name


def test_coco_recalls_equal_those_of_the_score_matrix(small):
    owners = np.repeat(np.arange(60), 5)
    matrices = (small.by_photo, small.by_caption)
    found = evaluate_matrices(*matrices, small.photo_ids, small.caption_ids, small.truth)
    folds = evaluate_folds(*matrices, owners, 5)
    whole = evaluate_directions(*matrices, owners)
    for name, retrieval in (("coco_1k", folds), ("coco_5k", whole)):
        for way in ("i2t", "t2i"):
            for k in (1, 5, 10):
                expected = getattr(getattr(retrieval, way), f"r{k}")
                assert found[f"{name}_r{k}"][way] == pytest.approx(expected, abs=0.0051)


def test_a_data_set_is_told_by_the_names_of_its_photos(small):
    """Other photos come first, and those of the test are in another order than in the truth."""
    rng = np.random.default_rng(4)
    order = rng.permutation(60)
    names = ["COCO_train2014_000000000007.jpg"] * 2
    names += [f"COCO_val2014_{small.photo_ids[p]:012d}.jpg" for p in order]
    dataset = SimpleNamespace(
        photos=[SimpleNamespace(file=name) for name in names],
        caption_starts=np.array([0, 3, *range(10, 311, 5)]),
    )
    columns = []  # of the truth's captions in the data set: by photo, ids rising
    for p in order:
        columns += sorted(range(5 * p, 5 * p + 5), key=lambda c: small.caption_ids[c])
    members = SimpleNamespace(
        photos=np.arange(2, 62),
        captions=np.arange(10, 310),
        photo_of_caption=np.repeat(np.arange(60), 5),
    )
    # Without ties, as the order of the items differs.
    noise = rng.permutation(small.by_photo.size).reshape(60, 300) / 1e5
    by_photo, by_caption = small.by_photo + noise, small.by_caption + noise
    scores = Directions(by_photo[order][:, columns], by_caption[order][:, columns])
    found = evaluate_coco(dataset, members, scores, small.truth)
    ids = (small.photo_ids, small.caption_ids)
    for name, ways in evaluate_matrices(by_photo, by_caption, *ids, small.truth).items():
        assert found[name] == pytest.approx(ways, abs=0.0051), name
    dataset.photos[5].file = "a dog.jpg"
    with pytest.raises(ValueError, match="'a dog.jpg' has no COCO id"):
        evaluate_coco(dataset, members, scores, small.truth)
    dataset.photos[5].file = "12.jpg"
    with pytest.raises(ValueError, match="photo 12 has a caption 1, but 0 in the COCO 5K test"):
        evaluate_coco(dataset, members, scores, small.truth)


def test_rankings_that_are_too_short_are_refused():
    truth = {1: list(range(12))}
    short = {1: list(range(11))}
    with pytest.raises(ValueError, match="query 1 has 11 items, 12 are needed"):
        precision_figures(short, truth)
    with pytest.raises(ValueError, match="query 1 has 9 items, 10 are needed"):
        recalls({1: list(range(9))}, truth)
    with pytest.raises(ValueError, match="5 items of its fold, 10 are needed.*whole gallery"):
        recalls_inside(short, truth, frozenset(range(6, 40)))
    with pytest.raises(ValueError, match="1 of 1 queries .* first is 1"):
        recalls({}, truth)
    with pytest.raises(ValueError, match="names an item twice"):
        recalls({1: [4] * 10}, truth)
    with pytest.raises(ValueError, match="no query with a positive"):
        recalls(short, {1: []})


def test_matrices_that_do_not_fit_are_refused(small):
    matrices = (small.by_photo, small.by_caption)
    with pytest.raises(ValueError, match=r"\(photos, captions\)"):
        evaluate_matrices(
            small.by_photo, small.by_caption.T, small.photo_ids, small.caption_ids, small.truth
        )
    with pytest.raises(ValueError, match="photo ids must be the 60 .* got 60, of which 59"):
        other = np.where(small.photo_ids == 1000, 999, small.photo_ids)
        evaluate_matrices(*matrices, other, small.caption_ids, small.truth)


def test_the_ground_truth_on_disk_is_checked(tmp_path, monkeypatch):
    i2t, t2i = tmp_path / "i2t.json", tmp_path / "t2i.json"
    i2t.write_text('{"3": [30, 31], "4": []}')
    t2i.write_text('{"30": ["3"], "31": ["3"]}')
    truth = Truth.read(i2t, t2i)
    assert truth.i2t == {3: {30, 31}, 4: set()} and truth.t2i == {30: {3}, 31: {3}}
    t2i.write_text('{"30": ["three"]}')
    with pytest.raises(ValueError, match="t2i.json .* no integer"):
        Truth.read(i2t, t2i)
    t2i.write_text('{"30": 3}')
    with pytest.raises(ValueError, match="t2i.json must hold an object of lists"):
        Truth.read(i2t, t2i)
    with pytest.raises(FileNotFoundError, match="missing"):
        CocoTruth.read(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install eccv_caption==0.1.0"):
        CocoTruth.bundled()
