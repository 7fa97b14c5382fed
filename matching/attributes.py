"""python -m matching.attributes: is a caption with one wrong colour, number or noun told apart?

500 captions of the test photos, each with one word swapped (matching.swaps). Counted is how often
the true caption scores above the wrong one: for stage 1, for the scorer and for the final score.
The scorer is also asked with the photo of another pair: what it then gets right (50 % by chance) it
reads off the words alone. The set follows from captions file and seed; its hash is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from matching.captions import CaptionedPhoto, select_photos
from matching.command import run_command
from matching.encoded import pad_captions
from matching.engine import Engine
from matching.engine_description import DEFAULT_ENGINE
from matching.evaluate import encode_captions
from matching.image import open_photo, photo_pixels
from matching.photos import PhotoSource, add_data_flags, open_photo_source
from matching.swaps import ATTRIBUTES, Swap, swap
from matching.text import MAX_WORDS

SEED = 5


@dataclass(frozen=True)
class AttributePair:
    """A photo, its caption and the same caption with one wrong word."""

    photo: CaptionedPhoto
    caption: str
    swap: Swap


def attribute_pairs(
    photos: list[CaptionedPhoto],
    count: int,
    seed: int = SEED,
    kinds: tuple[str, ...] = ATTRIBUTES,
) -> list[AttributePair]:
    """As many of each kind as possible, at most one a photo; (photos, count, seed) decide."""
    rng = np.random.default_rng(seed)
    wanted = {kind: count // len(kinds) + (i < count % len(kinds)) for i, kind in enumerate(kinds)}
    pairs: list[AttributePair] = []
    used: set[int] = set()
    # Numbers are the rarest: kinds take turns at the photos, rarest first.
    for kind in sorted(kinds, key=("number", "colour", "noun", "exchange").index):
        for place in rng.permutation(len(photos)).tolist():
            if wanted[kind] == 0:
                break
            pair = None if place in used else _pair(photos[place], kind, rng)
            if pair is not None:
                used.add(place)
                wanted[kind] -= 1
                pairs.append(pair)
    missing = {kind: n for kind, n in wanted.items() if n}
    if missing:
        raise ValueError(
            f"the photos allow too few swaps, missing are {missing}: give more photos (--limit) or "
            "a smaller --pairs",
        )
    return pairs


def _pair(photo: CaptionedPhoto, kind: str, rng: np.random.Generator) -> AttributePair | None:
    """The first caption, in a random order, that allows a swap of this kind."""
    for index in rng.permutation(len(photo.captions)).tolist():
        found = swap(photo.captions[index], photo.captions, rng, (kind,))
        if found is not None and found.word < MAX_WORDS:
            return AttributePair(photo, photo.captions[index], found)
    return None


def set_sha256(pairs: list[AttributePair]) -> str:
    rows = [[p.photo.file, p.caption, p.swap.text] for p in pairs]
    return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True)
class PairNumbers:
    """Of each pair with the true and with the wrong caption: (pairs, 2), or None."""

    stage1: np.ndarray
    scorer: np.ndarray
    final: np.ndarray
    scorer_other_photo: np.ndarray  # the same captions with the photo of the pair before
    swapped_word_gates: np.ndarray | None


def score_pairs(engine: Engine, pairs: list[AttributePair], source: PhotoSource) -> PairNumbers:
    texts = [text for pair in pairs for text in (pair.caption, pair.swap.text)]
    embeddings, sides = encode_captions(engine, engine.captions, texts)
    stage1, scorer, other, gates = (np.zeros((len(pairs), 2), np.float32) for _ in range(4))
    outputs = ("logit", "word_gates") if engine.has_gates else ("logit",)
    files = [pair.photo.file for pair in pairs]
    pixels = (photo_pixels(open_photo(source.read(file), file)) for file in files)
    photos = [engine.encode_photos([one]) for one in pixels]
    for row, pair in enumerate(pairs):
        photo, photo_side = photos[row]
        captions, mask = pad_captions(sides[2 * row : 2 * row + 2])
        stage1[row] = engine.similarity(photo, embeddings[2 * row : 2 * row + 2])[0]
        found = engine.score_grid(photo_side, captions, mask, outputs)
        scorer[row] = found[0][0]
        if engine.has_gates:
            gates[row] = found[1][0, :, pair.swap.word]
        other[row] = engine.score_grid(photos[row - 1][1], captions, mask, ("logit",))[0][0]
    # The popularity of the photo is the same for both captions.
    popularity = engine.popularity.of_captions(embeddings).reshape(stage1.shape)
    final = engine.ranking.scores(scorer, stage1 - popularity)
    return PairNumbers(stage1, scorer, final, other, gates if engine.has_gates else None)


def attribute_test(pairs: list[AttributePair], numbers: PairNumbers) -> dict[str, Any]:
    """Percent of pairs with the true caption above the wrong one, and what gates do."""
    kinds = np.array([pair.swap.kind for pair in pairs])

    def percent(scores: np.ndarray, rows: np.ndarray) -> float:
        return round(100 * float((scores[rows, 0] > scores[rows, 1]).mean()), 1)

    document: dict[str, Any] = {"pairs": len(pairs), "set_sha256": set_sha256(pairs)}
    parts = {"all": np.ones(len(pairs), bool)} | {k: kinds == k for k in dict.fromkeys(kinds)}
    for name, rows in parts.items():
        document[name] = {"pairs": int(rows.sum())}
        for what in ("stage1", "scorer", "final", "scorer_other_photo"):
            document[name][what] = percent(getattr(numbers, what), rows)
        gates = numbers.swapped_word_gates
        if gates is not None:
            true, wrong = gates[rows].mean(0).tolist()
            document[name] |= {
                "gate_falls": percent(gates, rows),
                "gate_true": round(true, 3),
                "gate_wrong": round(wrong, 3),
            }
    return document


def add_test_flags(parser: argparse.ArgumentParser) -> None:
    """Which photos a test takes its pairs from, and how many."""
    add_data_flags(parser)
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, default=1000, help="photos to choose from")
    parser.add_argument("--pairs", type=int, default=500)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.attributes", description=__doc__)
    add_test_flags(parser)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--engine", type=Path, default=DEFAULT_ENGINE)
    parser.add_argument("--show", type=int, default=0, help="also print so many failures")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    photos = select_photos(arguments.captions, arguments.split, arguments.limit, 5)
    pairs = attribute_pairs(photos, arguments.pairs, arguments.seed)
    numbers = score_pairs(Engine(arguments.engine), pairs, open_photo_source(arguments.photos))
    document = attribute_test(pairs, numbers)
    if arguments.json:
        print(json.dumps(document))
        return 0
    print(f"{len(pairs)} pairs, set {document['set_sha256'][:12]}; true above wrong, in percent")
    heads = f"{'':8}{'pairs':>7}{'stage 1':>9}{'scorer':>8}{'final':>7}{'other photo':>13}"
    print(f"{heads}   gate true, wrong, falls")
    for name in [n for n in document if n not in ("pairs", "set_sha256")]:
        row = document[name]
        gates = "   {gate_true}, {gate_wrong}, {gate_falls} %" if "gate_true" in row else ""
        head = f"{name:8}{row['pairs']:>7}{row['stage1']:>9}{row['scorer']:>8}{row['final']:>7}"
        print(f"{head}{row['scorer_other_photo']:>13}" + gates.format(**row))
    wrong = np.flatnonzero(numbers.scorer[:, 0] <= numbers.scorer[:, 1])[: arguments.show]
    for row in wrong.tolist():
        pair = pairs[row]
        print(f"{pair.photo.file}: {pair.caption!r} below {pair.swap.text!r}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
