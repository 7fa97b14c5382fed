"""ECCV Caption and CxC figures of a COCO 5K ranking: mAP@R, R-Precision and recalls (torch-free).

ECCV Caption (Chun et al., ECCV 2022) and CxC (Parekh et al., EACL 2021) give the COCO test more
true pairs than the five captions of each photo. All figures are in percent. A ranking is
{query id: item ids, best first}; a truth is {query id: ids of its positives}. A query without
positives is left out.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from matching.files import read_json
from matching.metrics import row_chunks

if TYPE_CHECKING:
    from matching.datasets import Dataset
    from matching.encode_features import SplitMembers
    from matching.ensemble import Directions

KS = (1, 5, 10)
FOLDS = 5

Rankings = Mapping[int, Sequence[int] | np.ndarray]
Positives = Mapping[int, Collection[int]]
Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Truth:
    """Positives of photos (i2t: caption ids) and of captions (t2i: photo ids)."""

    i2t: Positives
    t2i: Positives

    @staticmethod
    def of(i2t: Mapping[int, Iterable[int]], t2i: Mapping[int, Iterable[int]]) -> Truth:
        return Truth(
            *(
                {int(q): frozenset(int(item) for item in items) for q, items in way.items()}
                for way in (i2t, t2i)
            )
        )

    @staticmethod
    def read(i2t: Path, t2i: Path) -> Truth:
        """Two JSON files of the form {"query id": [item ids]}."""
        documents = []
        for path in (i2t, t2i):
            document = read_json(path)
            if not isinstance(document, dict) or not all(
                isinstance(items, list) for items in document.values()
            ):
                raise ValueError(f"{path} must hold an object of lists: query id -> item ids")
            documents.append(document)
        try:
            return Truth.of(*documents)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{i2t} or {t2i} holds an id that is no integer ({error})") from None


@dataclass(frozen=True)
class CocoTruth:
    """The three truths of the COCO 5K test, and the order of its captions for the folds of 1K."""

    coco: Truth
    cxc: Truth
    eccv: Truth
    caption_ids: np.ndarray  # (25000,), captions of a photo together, in the order of the split

    @staticmethod
    def read(folder: Path) -> CocoTruth:
        """The files as the package eccv_caption stores them."""
        truths = [
            Truth.read(
                folder / f"{name}_image_to_caption.json", folder / f"{name}_caption_to_image.json"
            )
            for name in ("original", "cxc", "eccv")
        ]
        order = folder / "coco_test_ids.npy"
        if not order.is_file():
            raise FileNotFoundError(f"{order} is missing")
        return CocoTruth(*truths, np.load(order, allow_pickle=False))

    @staticmethod
    def bundled() -> CocoTruth:
        """The truth that PyPI's eccv_caption brings along; its code is not run."""
        spec = importlib.util.find_spec("eccv_caption")
        if spec is None or spec.origin is None:
            raise ImportError(
                "the ground truth of ECCV Caption and CxC comes with the package eccv_caption, "
                "which is not installed: pip install eccv_caption==0.1.0"
            )
        return CocoTruth.read(Path(spec.origin).parent / "data")

    def folds(self) -> list[Truth]:
        """COCO 1K: blocks of consecutive captions and their photos."""
        if len(self.caption_ids) % FOLDS:
            raise ValueError(f"{len(self.caption_ids)} captions do not make {FOLDS} equal folds")
        folds = []
        for block in np.split(self.caption_ids, FOLDS):
            t2i = {caption: self.coco.t2i[caption] for caption in block.tolist()}
            photos = frozenset().union(*t2i.values())
            folds.append(Truth({photo: self.coco.i2t[photo] for photo in photos}, t2i))
        return folds


def recalls(rankings: Rankings, positives: Positives, ks: Sequence[int] = KS) -> dict[int, float]:
    """{k: how many queries in percent have a positive among their first k items}."""
    first = [
        _first_hit(_items(rankings, query, max(ks)), true)
        for query, true in _queries(rankings, positives)
    ]
    return {k: 100 * float(np.mean([rank < k for rank in first])) for k in ks}


def recalls_inside(
    rankings: Rankings,
    positives: Positives,
    inside: frozenset[int],
    ks: Sequence[int] = KS,
) -> dict[int, float]:
    """Recalls when only the items `inside` are in the gallery; the rankings are of a larger one."""
    needed = max(ks)
    kept: dict[int, list[int]] = {}
    for query, _ in _queries(rankings, positives):
        items = kept[query] = []
        for item in _as_list(rankings[query]):
            if item in inside:
                items.append(item)
                if len(items) == needed:
                    break
        else:
            raise ValueError(
                f"the ranking of query {query} has {len(items)} items of its fold, {needed} are "
                "needed; folds need rankings of the whole gallery, not only of its first items"
            )
    return recalls(kept, positives, ks)


def precision_figures(rankings: Rankings, positives: Positives) -> dict[str, float]:
    """mAP@R and R-Precision, where R is the number of positives of the query.

    mAP@R(q) = 1/R sum_{r=1..R} Prec@r [item r is positive]; R-Precision(q) = Prec@R.
    """
    average, at_r = [], []
    for query, true in _queries(rankings, positives):
        items = _items(rankings, query, len(true))
        hits = np.array([item in true for item in items], np.float64)
        precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
        average.append((precision * hits).mean())
        at_r.append(precision[-1])
    return {
        "map_at_r": 100 * float(np.mean(average)),
        "rprecision": 100 * float(np.mean(at_r)),
    }


def evaluate_rankings(i2t: Rankings, t2i: Rankings, truth: CocoTruth) -> Figures:
    """All figures: {"eccv_map_at_r": {"i2t": percent, "t2i": percent}, ...}.

    The keys are those of PyPI's eccv_caption: coco_1k_r1, coco_5k_r1, cxc_r1, eccv_r1 (and 5, 10),
    eccv_map_at_r, eccv_rprecision. i2t ranks the captions for each photo, t2i the photos for each
    caption; both must be of the whole gallery, as the folds of coco_1k pick their items from it.
    """
    return _by_figure(
        _figures(i2t, "i2t", truth, partial(recalls_inside, i2t)),
        _figures(t2i, "t2i", truth, partial(recalls_inside, t2i)),
    )


def evaluate_matrices(
    by_photo: np.ndarray,
    by_caption: np.ndarray,
    photo_ids: np.ndarray,
    caption_ids: np.ndarray,
    truth: CocoTruth,
) -> Figures:
    """The figures of evaluate_rankings from scores; no ranking of a whole gallery is kept.

    Args:
        by_photo: (photos, captions), what a photo ranks captions by.
        by_caption: (photos, captions), what a caption ranks photos by; the same for one stage.
        photo_ids: (photos,) COCO ids.
        caption_ids: (captions,) COCO ids of the annotations.
    """
    _check_ids(photo_ids, caption_ids, by_photo.shape, by_caption.shape, truth)

    def figures(way: str, scores: np.ndarray, queries: np.ndarray, items: np.ndarray) -> dict:
        def inside(positives: Positives, kept: frozenset[int]) -> dict[int, float]:
            rows = np.flatnonzero(np.isin(queries, list(positives)))
            columns = np.flatnonzero(np.isin(items, list(kept)))
            block = scores[np.ix_(rows, columns)]
            return recalls(rank_items(block, queries[rows], items[columns], max(KS)), positives)

        depth = max(*KS, *(len(true) for true in getattr(truth.eccv, way).values()))
        return _figures(rank_items(scores, queries, items, depth), way, truth, inside)

    return _by_figure(
        figures("i2t", by_photo, photo_ids, caption_ids),
        figures("t2i", by_caption.T, caption_ids, photo_ids),
    )


def evaluate_coco(
    dataset: Dataset,
    members: SplitMembers,
    scores: Directions,
    truth: CocoTruth | None = None,
) -> Figures:
    """The figures of a data set that holds the whole COCO 5K test, rounded.

    A photo is known by the number at the end of its name (COCO_val2014_000000391895.jpg). The truth
    knows captions by id alone, so a photo's captions must stand in the order of Karpathy's file,
    in which their ids rise.
    """
    truth = truth or CocoTruth.bundled()
    photo_ids = np.array([_photo_id(dataset.photos[photo].file) for photo in members.photos])
    owners = members.photo_of_caption
    places = members.captions - dataset.caption_starts[members.photos[owners]]
    caption_ids = np.array(
        [
            _caption_id(truth, photo, place)
            for photo, place in zip(photo_ids[owners].tolist(), places.tolist(), strict=True)
        ]
    )
    found = evaluate_matrices(scores.by_photo, scores.by_caption, photo_ids, caption_ids, truth)
    return {
        name: {way: round(figure, 2) for way, figure in ways.items()}
        for name, ways in found.items()
    }


def _photo_id(name: str) -> int:
    number = re.search(r"(\d+)(\.\w+)?$", name)
    if number is None:
        raise ValueError(f"photo {name!r} has no COCO id at the end of its name")
    return int(number[1])


def _caption_id(truth: CocoTruth, photo: int, place: int) -> int:
    captions = sorted(truth.coco.i2t.get(photo, ()))
    if place >= len(captions):
        raise ValueError(
            f"photo {photo} has a caption {place + 1}, but {len(captions)} in the COCO 5K test; "
            "evaluate that test with five captions a photo"
        )
    return captions[place]


def rank_items(
    scores: np.ndarray,
    query_ids: np.ndarray,
    item_ids: np.ndarray,
    depth: int | None = None,
) -> dict[int, np.ndarray]:
    """The ids of the first `depth` items of each query, or of all: ties to the lower index.

    scores: (queries, items).
    """
    rankings: dict[int, np.ndarray] = {}
    for rows in row_chunks(scores.shape):
        order = np.argsort(-scores[rows], axis=1, kind="stable")[:, :depth]
        rankings.update(zip(query_ids[rows].tolist(), item_ids[order], strict=True))
    return rankings


def _figures(
    rankings: Rankings,
    way: str,
    truth: CocoTruth,
    inside: Callable[[Positives, frozenset[int]], dict[int, float]],
) -> dict[str, float]:
    """The figures of one direction; `inside` gives the recalls in the gallery of a fold."""
    found: dict[str, float] = {}
    for name, part in (("coco_5k", truth.coco), ("cxc", truth.cxc), ("eccv", truth.eccv)):
        shares = recalls(rankings, getattr(part, way))
        found |= {f"{name}_r{k}": share for k, share in shares.items()}
    precisions = precision_figures(rankings, getattr(truth.eccv, way))
    found |= {f"eccv_{name}": figure for name, figure in precisions.items()}
    folds = [
        inside(getattr(fold, way), frozenset(fold.t2i if way == "i2t" else fold.i2t))
        for fold in truth.folds()
    ]
    return found | {f"coco_1k_r{k}": float(np.mean([fold[k] for fold in folds])) for k in KS}


def _by_figure(i2t: dict[str, float], t2i: dict[str, float]) -> Figures:
    return {name: {"i2t": i2t[name], "t2i": t2i[name]} for name in i2t}


def _queries(rankings: Rankings, positives: Positives) -> list[tuple[int, frozenset[int]]]:
    queries = [(query, frozenset(true)) for query, true in positives.items() if len(true)]
    missing = [query for query, _ in queries if query not in rankings]
    if not queries:
        raise ValueError("the ground truth has no query with a positive: nothing to measure")
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(queries)} queries of the ground truth have no ranking, the "
            f"first is {missing[0]}; rank the whole test split"
        )
    return queries


def _as_list(ranking: Sequence[int] | np.ndarray) -> Sequence[int]:
    return ranking.tolist() if isinstance(ranking, np.ndarray) else ranking


def _items(rankings: Rankings, query: int, count: int) -> Sequence[int]:
    items = _as_list(rankings[query][:count])
    if len(items) < count:
        raise ValueError(
            f"the ranking of query {query} has {len(items)} items, {count} are needed: as many as "
            "it has positives, and as the largest k of a recall"
        )
    if len(set(items)) != len(items):
        raise ValueError(f"the ranking of query {query} names an item twice")
    return items


def _first_hit(items: Sequence[int], true: frozenset[int]) -> float:
    return next((rank for rank, item in enumerate(items) if item in true), np.inf)


def _check_ids(
    photo_ids: np.ndarray,
    caption_ids: np.ndarray,
    shape: tuple[int, ...],
    other: tuple[int, ...],
    truth: CocoTruth,
) -> None:
    if not shape == other == (len(photo_ids), len(caption_ids)):
        raise ValueError(
            f"scores {shape} and {other} do not fit {len(photo_ids)} photo ids and "
            f"{len(caption_ids)} caption ids: both must be (photos, captions)"
        )
    pairs = (("photo", photo_ids, truth.coco.i2t), ("caption", caption_ids, truth.coco.t2i))
    for name, ids, expected in pairs:
        given = set(ids.tolist())
        if len(given) != len(ids) or given != set(expected):
            raise ValueError(
                f"{name} ids must be the {len(expected)} of the COCO 5K test, each once; got "
                f"{len(ids)}, of which {len(given & set(expected))} are among them"
            )
