"""python -m matching.evaluate: recall both ways of stage 1, of CAMP over its shortlist, and gates.

Any caption file in the form of matching.captions with its photos in a folder (or git directory).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tqdm import tqdm

from matching.captions import CaptionedPhoto, select_photos
from matching.command import run_command
from matching.encoded import Encoded, GridScores, Reranked, ScoreGrid, evaluate_reranked
from matching.engine import Engine
from matching.image import open_photo, photo_pixels
from matching.photos import PhotoSource, open_photo_source
from matching.ranking import Ranking
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
    names = ("logit", "word_gates", "region_gates")

    def score(photos: np.ndarray, captions: np.ndarray, mask: np.ndarray) -> GridScores:
        return GridScores(*engine.score_grid(photos, captions, mask, names))

    return score


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.evaluate", description=__doc__)
    parser.add_argument("--captions", type=Path, help="captions, JSON lines (.gz)")
    parser.add_argument("--photos", type=Path, help="folder of the photos, or a git directory")
    parser.add_argument(
        "--features",
        type=Path,
        help="instead of --captions and --photos, with --checkpoint: "
        "a folder made by python -m matching.prepare",
    )
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, default=1000, help="photos (default 1000)")
    parser.add_argument("--captions-a-photo", type=int, default=5)
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--engine", type=Path, default=Path("engines/default"))
    model.add_argument("--checkpoint", type=Path, help="folder with vse_infinity/ and camp/")
    parser.add_argument(
        "--everything", action="store_true", help="also CAMP over all pairs (minutes)"
    )
    parser.add_argument(
        "--record",
        metavar="NAME",
        help="with --checkpoint: store the result under this name in its metrics.json",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    encoded, score, ranking = _encode(arguments, parser.error)
    document = evaluate_reranked(Reranked.of(encoded, score), score, ranking, arguments.everything)
    if arguments.record is not None:
        from matching.checkpoint import record_metrics  # torch, as above

        stage1 = {key: document[key] for key in ("photos", "captions", "stage1")}
        record_metrics(arguments.checkpoint / "vse_infinity", arguments.record, stage1)
        record_metrics(arguments.checkpoint / "camp", arguments.record, document)
    print(json.dumps(document) if arguments.json else _table(document))
    return 0


def _encode(
    arguments: argparse.Namespace,
    refuse: Callable[[str], None],
) -> tuple[Encoded, ScoreGrid, Ranking]:
    if arguments.features is None and None in (arguments.captions, arguments.photos):
        refuse("--captions and --photos are needed")
    if arguments.record is not None and arguments.checkpoint is None:
        refuse("--record goes with --checkpoint")
    if arguments.checkpoint is not None:
        from matching.encode_checkpoint import encode_with_checkpoint  # torch, only if asked for

        return encode_with_checkpoint(arguments)
    if arguments.features is not None:
        refuse("--features goes with --checkpoint: an engine encodes the photos themselves")
    engine = Engine(arguments.engine)
    photos = select_photos(
        arguments.captions,
        arguments.split,
        arguments.limit,
        arguments.captions_a_photo,
    )
    encoded = encode_with_engine(engine, photos, open_photo_source(arguments.photos))
    return encoded, engine_scorer(engine), engine.ranking


def _table(document: dict) -> str:
    lines = [f"{document['photos']} photos, {document['captions']} captions"]
    names = ("stage1", "rerank", "rerank_camp_alone", "camp_over_everything")
    for name in (n for n in names if n in document):
        cells = [
            " / ".join(f"{document[name][way][k]:5.1f}" for k in ("r1", "r5", "r10"))
            + f" (median {document[name][way]['medr']})"
            for way in ("i2t", "t2i")
        ]
        lines.append(f"{name:22} i2t {cells[0]}   t2i {cells[1]}   rsum {document[name]['rsum']}")
    lines.append("mean gates: " + ", ".join(f"{k} {v}" for k, v in document["gates"].items()))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run_command(main))
