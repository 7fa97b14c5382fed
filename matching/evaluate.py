"""python -m matching.evaluate: recall both ways of stage 1 and of a scorer over its shortlist.

Any caption file in the form of matching.captions with its photos in a folder (or git directory),
or features on disk. An engine by default, or checkpoints: any stage 1, any scorer, or an ensemble
of several of each.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from matching.captions import CaptionedPhoto, select_photos
from matching.command import run_command
from matching.encoded import Encoded, GridScores, ScoreGrid
from matching.engine import Engine
from matching.engine_description import DEFAULT_ENGINE
from matching.image import open_photo, photo_pixels
from matching.photos import PhotoSource, open_photo_source
from matching.reranked import Reranked, evaluate_reranked
from matching.shortlist import ShortlistSize
from matching.text import CaptionReader


def encode_with_engine(
    engine: Engine,
    photos: list[CaptionedPhoto],
    source: PhotoSource,
) -> Encoded:
    """Runs the photos and captions through an engine as the app does."""
    embeddings, sides = [], []
    for start in tqdm(range(0, len(photos), 8), "photos", unit="batch", mininterval=5):
        chunk = photos[start : start + 8]
        pixels = [photo_pixels(open_photo(source.read(p.file), p.file)) for p in chunk]
        embedding, side = engine.encode_photos(pixels)
        embeddings.append(embedding)
        sides.append(side)
    texts = [caption for photo in photos for caption in photo.captions]
    caption_embeddings, caption_sides = encode_captions(engine, engine.captions, texts)
    owners = [i for i, photo in enumerate(photos) for _ in photo.captions]
    return Encoded(
        np.concatenate(embeddings),
        np.concatenate(sides),
        caption_embeddings,
        caption_sides,
        np.array(owners),
        engine.similarity,
        engine.popularity,
    )


def encode_captions(
    engine: Engine,
    reader: CaptionReader,
    texts: list[str],
) -> tuple[np.ndarray, list[np.ndarray]]:
    captions = [reader.read(text) for text in texts]
    order = np.argsort([len(c.piece_ids) for c in captions], kind="stable")
    embeddings = np.empty((len(texts), engine.embedding_width), np.float32)
    sides: list[np.ndarray | None] = [None] * len(texts)
    for start in tqdm(range(0, len(order), 32), "captions", unit="batch", mininterval=5):
        rows = order[start : start + 32]
        embeddings[rows], found = engine.encode_captions([captions[i] for i in rows])
        for row, side in zip(rows, found, strict=True):
            sides[row] = side
    return embeddings, sides


def engine_scorer(engine: Engine) -> ScoreGrid:
    names = ("logit", "word_gates", "region_gates") if engine.has_gates else ("logit",)

    def score(photos: np.ndarray, captions: np.ndarray, mask: np.ndarray) -> GridScores:
        return GridScores(*engine.score_grid(photos, captions, mask, names))

    return score


def evaluate_engine(arguments: argparse.Namespace) -> dict[str, Any]:
    engine = Engine(arguments.engine)
    photos = select_photos(
        arguments.captions,
        arguments.split,
        arguments.limit,
        arguments.captions_a_photo,
    )
    encoded = encode_with_engine(engine, photos, open_photo_source(arguments.photos))
    score = engine_scorer(engine)
    reranked = Reranked.of(encoded, score, arguments.shortlist)
    return evaluate_reranked(reranked, score, engine.ranking, arguments.everything, arguments.folds)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m matching.evaluate", description=__doc__)
    parser.add_argument("--captions", type=Path, help="captions, JSON lines (.gz)")
    parser.add_argument("--photos", type=Path, help="folder of the photos, or a git directory")
    parser.add_argument(
        "--features",
        type=Path,
        help="instead of --captions and --photos, with checkpoints: a folder made by python -m "
        "matching.prepare, or in the field's `precomp` layout",
    )
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, default=1000, help="photos (default 1000)")
    parser.add_argument("--captions-a-photo", type=int, default=5)
    parser.add_argument(
        "--shortlist",
        type=ShortlistSize.parse,
        default=ShortlistSize(100),
        metavar="K",
        help="what the scorer ranks of stage 1: a number or a percentage (default 100)",
    )
    parser.add_argument("--folds", type=int, default=1, help="5: as COCO 1K is reported")
    parser.add_argument(
        "--eccv",
        action="store_true",
        help="also ECCV Caption and CxC, with checkpoints, for data of COCO's 5K test with ids",
    )
    parser.add_argument("--engine", type=Path, default=DEFAULT_ENGINE)
    parser.add_argument("--checkpoint", type=Path, help="folder with vse_infinity/ and camp/")
    parser.add_argument(
        "--stage1",
        type=Path,
        nargs="+",
        help="checkpoint of stage 1; of several, the mean of their similarities",
    )
    parser.add_argument(
        "--scorer",
        type=Path,
        nargs="+",
        help="checkpoint of a scorer; of several, the mean of their scores",
    )
    parser.add_argument(
        "--everything", action="store_true", help="also the scorer over all pairs (minutes)"
    )
    parser.add_argument(
        "--record",
        metavar="NAME",
        help="with checkpoints: store the result under this name in their metrics.json",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.features is None and None in (arguments.captions, arguments.photos):
        parser.error("--captions and --photos are needed")
    if arguments.checkpoint is not None:
        if arguments.stage1 or arguments.scorer:
            parser.error("--checkpoint stands for --stage1 and --scorer: give one or the other")
        arguments.stage1 = [arguments.checkpoint / "vse_infinity"]
        arguments.scorer = [arguments.checkpoint / "camp"]
    if arguments.stage1 is not None:
        from matching.evaluate_checkpoints import evaluate_checkpoints  # torch, only if asked for

        document = evaluate_checkpoints(arguments)
    else:
        for name in ("scorer", "features", "record"):
            if getattr(arguments, name) is not None:
                parser.error(f"--{name} goes with --stage1 or --checkpoint")
        if arguments.eccv:
            parser.error("--eccv goes with --stage1 or --checkpoint")
        document = evaluate_engine(arguments)
    print(json.dumps(document) if arguments.json else table_of(document))
    return 0


def table_of(document: dict[str, Any]) -> str:
    lines = [f"{document['photos']} photos, {document['captions']} captions"]
    lines += _rows(document, "")
    if "folds" in document:
        folds = document["folds"]
        lines += [f"mean of {folds['count']} folds", *_rows(folds, "  ")]
    if "shortlist" in document:
        listed = document["shortlist"]
        lines.append(
            f"shortlist of {listed['size']}: the photo is in it for {listed['photo_found']} % of "
            f"the captions, a caption for {listed['caption_found']} % of the photos",
        )
    if document.get("gates"):
        gates = ", ".join(f"{k} {v}" for k, v in document["gates"].items())
        lines.append(f"mean gates: {gates}")
    if "eccv" in document:
        lines.append(f"ECCV Caption and CxC: {json.dumps(document['eccv'])}")
    return "\n".join(lines)


def _rows(document: dict[str, Any], indent: str) -> list[str]:
    names = (
        "stage1",
        "stage1_less_popularity",
        "rerank",
        "rerank_scorer_alone",
        "scorer_over_everything",
        "ensemble",
    )
    lines = []
    for name in (n for n in names if n in document):
        cells = [
            " / ".join(f"{document[name][way][k]:5.1f}" for k in ("r1", "r5", "r10"))
            + f" (median {document[name][way]['medr']})"
            for way in ("i2t", "t2i")
        ]
        rsum = document[name]["rsum"]
        lines.append(f"{indent}{name:22} i2t {cells[0]}   t2i {cells[1]}   rsum {rsum}")
    return lines


if __name__ == "__main__":
    sys.exit(run_command(main))
