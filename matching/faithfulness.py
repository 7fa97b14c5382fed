"""python -m matching.faithfulness: do the maps of the page tell the truth?

(a) deletion and insertion: hiding regions or words in the order of a map must lower the score
faster than hiding them at random, and the map that is shown must be the best one; (b) a caption
with one wrong word must lower that word's gate and the score; (c) torch, ONNX Runtime and reduced
precision must draw the same map; (d) a model that was never trained must fail (a) and (b).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from matching.attributes import AttributePair, add_test_flags, attribute_pairs
from matching.captions import CaptionedPhoto, select_photos
from matching.checkpoint import load_checkpoint
from matching.command import run_command
from matching.deletion import ScoreVisible, area, curves
from matching.engine import Engine
from matching.engine_description import DEFAULT_ENGINE
from matching.image import NUM_REGIONS, open_photo
from matching.models.backbones import Backbones, backbones_beside
from matching.models.scores import PairScores
from matching.models.text_backbone import backbone_folder
from matching.overlay_agreement import overlay_agreement
from matching.photos import PhotoSource, open_photo_source
from matching.saliency import MAPS, region_maps, word_maps
from matching.systems import make_system
from matching.text import CaptionReader
from matching.visible_pairs import Pair, TorchPairs

WAYS = ("sets", "inputs")
# Encoding a photo anew takes a hundred times as long as taking regions out of a set.
_REGION_STEPS = {"sets": 12, "inputs": 6}
_RANDOM_ORDERS = {"sets": 3, "inputs": 1}  # of each pair, averaged
_SEED = 7


@dataclass(frozen=True)
class _Maps:
    regions: dict[str, np.ndarray]  # (R,) each
    words: dict[str, np.ndarray]  # (N,) each


def maps_of(scores: PairScores, words: int) -> _Maps:
    word_attention, region_attention, word_gates, region_gates = (
        part.numpy() for part in scores[1:]
    )
    gates = word_gates[:words], region_gates
    return _Maps(
        region_maps(word_attention[:words], *gates),
        word_maps(region_attention[:, :words], *gates),
    )


def deletion_test(model: TorchPairs, pairs: list[Pair], way: str) -> dict[str, Any]:
    """Mean areas of every map and of random orders, for regions and for words."""
    rng = np.random.default_rng(_SEED)
    rows: dict[str, list[dict[str, np.ndarray]]] = {"regions": [], "words": []}
    for pair in tqdm(pairs, f"hiding {way}", mininterval=5):
        words = len(pair.caption.words)
        maps = maps_of(model.explain(pair), words)
        orders = [rng.random((_RANDOM_ORDERS[way], size)) for size in (NUM_REGIONS, words)]
        regions = partial(model.with_regions, pair, way=way)
        rows["regions"].append(_areas(regions, maps.regions, _REGION_STEPS[way], orders[0]))
        by_words = partial(model.with_words, pair, way=way)
        rows["words"].append(_areas(by_words, maps.words, words, orders[1]))
    return {side: _summary(found) for side, found in rows.items()}


def _areas(
    score: ScoreVisible,
    maps: dict[str, np.ndarray],
    steps: int,
    orders: np.ndarray,
) -> dict[str, np.ndarray]:
    """Areas under deletion and insertion (2,) of each map and, averaged, of random orders."""

    def both(importance: np.ndarray) -> np.ndarray:
        return np.array([area(curve) for curve in curves(score, importance, steps)])

    found = {name: both(maps[name]) for name in MAPS}
    return {**found, "random": np.mean([both(order) for order in orders], 0)}


def _summary(rows: list[dict[str, np.ndarray]]) -> dict[str, Any]:
    means = {name: np.mean([row[name] for row in rows], 0) for name in rows[0]}
    random = means["random"]
    return {
        name: {
            "deletion": round(float(deletion), 4),
            "insertion": round(float(insertion), 4),
            "deletion_below_random": round(100 * (1 - float(deletion / random[0])), 1),
            "insertion_above_random": round(100 * (float(insertion / random[1]) - 1), 1),
        }
        for name, (deletion, insertion) in means.items()
    }


def sensitivity_test(
    model: TorchPairs,
    pairs: list[AttributePair],
    source: PhotoSource,
) -> dict[str, Any]:
    """How often the score, and the gate of the changed word, fall with one wrong word: percent."""
    rows = []
    for pair in tqdm(pairs, "wrong words", mininterval=5):
        photo = open_photo(source.read(pair.photo.file), pair.photo.file)
        true, wrong = (
            model.explain(model.pair(photo, text)) for text in (pair.caption, pair.swap.text)
        )
        place = pair.swap.word
        gates = true.word_gates[place].item(), wrong.word_gates[place].item()
        rows.append((pair.swap.kind, true.logit.item() > wrong.logit.item(), *gates))
    document = {}
    for kind in ("all", *dict.fromkeys(row[0] for row in rows)):
        chosen = [row for row in rows if kind in ("all", row[0])]
        document[kind] = {
            "pairs": len(chosen),
            "score_falls": round(100 * float(np.mean([r[1] for r in chosen])), 1),
            "gate_falls": round(100 * float(np.mean([r[2] > r[3] for r in chosen])), 1),
            "gate_true": round(float(np.mean([r[2] for r in chosen])), 3),
            "gate_wrong": round(float(np.mean([r[3] for r in chosen])), 3),
        }
    return document


def faithfulness(arguments: argparse.Namespace) -> dict[str, Any]:
    scorer = load_checkpoint(arguments.scorer, "scorer")
    backbones = Backbones.load(backbones_beside(arguments.scorer))
    if backbones.sha256 != scorer.config["backbone_sha256"]:
        raise ValueError(f"{arguments.scorer} was trained on other backbones than those beside it")
    reader = CaptionReader(backbone_folder() / "tokenizer.json")
    torch.manual_seed(_SEED)
    untrained = make_system(scorer.system, scorer.model.config).eval()
    models = {
        "trained": TorchPairs(backbones, scorer.model, reader),
        "untrained": TorchPairs(backbones, untrained, reader),
    }
    photos = select_photos(arguments.captions, arguments.split, arguments.limit, 5)
    source = open_photo_source(arguments.photos)
    shown = _pairs(models["trained"], photos[: arguments.pairs], source)
    swaps = attribute_pairs(photos, arguments.pairs)
    counts = {"sets": arguments.pairs, "inputs": arguments.input_pairs}
    document: dict[str, Any] = {"pairs": {way: counts[way] for way in arguments.ways}}
    for name, model in models.items():
        document[name] = {
            "deletion": {
                way: deletion_test(model, shown[: counts[way]], way) for way in arguments.ways
            },
            "sensitivity": sensitivity_test(model, swaps, source),
        }
    engine = Engine(arguments.engine)
    document["agreement"] = overlay_agreement(engine, backbones, scorer.model, shown)
    return document


def _pairs(model: TorchPairs, photos: list[CaptionedPhoto], source: PhotoSource) -> list[Pair]:
    """Each photo with its first caption."""
    return [
        model.pair(open_photo(source.read(photo.file), photo.file), photo.captions[0])
        for photo in photos
    ]


def _print(document: dict[str, Any]) -> None:
    for name in ("trained", "untrained"):
        for way, sides in document[name]["deletion"].items():
            for side, maps in sides.items():
                for kind, row in maps.items():
                    print(
                        f"{name:10}{way:8}{side:8}{kind:18}deletion {row['deletion']:.4f} "
                        f"({row['deletion_below_random']:+.1f} % below random), insertion "
                        f"{row['insertion']:.4f} ({row['insertion_above_random']:+.1f} % above)"
                    )
        for kind, row in document[name]["sensitivity"].items():
            print(
                f"{name:10}wrong {kind:8}score falls {row['score_falls']} %, gate falls "
                f"{row['gate_falls']} %: {row['gate_true']} to {row['gate_wrong']}"
            )
    for name, row in document["agreement"].items():
        print(
            f"{name:38}largest difference of a map {row['largest_difference']:.1e}, "
            f"same strongest region {row['same_strongest']} %"
        )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.faithfulness", description=__doc__)
    add_test_flags(parser)
    parser.add_argument("--input-pairs", type=int, default=100, help="of them, for hiding inputs")
    parser.add_argument("--scorer", type=Path, default=Path("checkpoints/standard/camp"))
    parser.add_argument("--engine", type=Path, default=DEFAULT_ENGINE, help="of the scorer")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="of hiding")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    document = faithfulness(arguments)
    if arguments.json:
        print(json.dumps(document))
    else:
        _print(document)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
