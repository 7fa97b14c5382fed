"""python -m matching.popularity_bank: what the popularity of photos and captions is measured by.

Embeddings of training captions and training photos, drawn by a seed from every feature folder
alike, beside the weights of a stage 1. python -m matching.pair and everything after it then rank
by similarities less popularity (matching.popularity).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

from matching.checkpoint import load_checkpoint
from matching.command import run_command
from matching.datasets import Dataset, open_dataset
from matching.encode_features import Matcher, embed_captions, embed_photos
from matching.popularity import POPULARITY_FILE, Popularity


def make_bank(stage1: Matcher, datasets: list[Dataset], size: int, seed: int) -> Popularity:
    """`size` photos of each data set, and as many captions of others, one of a photo."""
    kind = stage1.model.similarity_settings()["kind"]
    if kind != "cosine":
        raise ValueError(f"popularity is for a stage 1 that compares by cosine, not by {kind}")
    rng = np.random.default_rng(seed)
    captions, photos = [], []
    for dataset in datasets:
        train = dataset.photos_of("train")
        if len(train) < 2 * size:
            raise ValueError(
                f"{dataset.folder} has {len(train)} training photos, {2 * size} are needed: give a "
                "smaller --size",
            )
        drawn = rng.permutation(train)[: 2 * size]
        chosen = [int(rng.choice(dataset.captions_of(photo))) for photo in drawn[:size]]
        captions.append(embed_captions(stage1, dataset, np.array(chosen)))
        photos.append(embed_photos(stage1, dataset, drawn[size:]))
    return Popularity(np.concatenate(captions), np.concatenate(photos))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.popularity_bank", description=__doc__)
    parser.add_argument("--stage1", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--features", type=Path, nargs="+", required=True, help="feature folders")
    parser.add_argument("--size", type=int, default=2000, help="of each folder (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    stage1 = load_checkpoint(arguments.stage1, "stage1")
    datasets = [open_dataset(folder) for folder in arguments.features]
    bank = make_bank(Matcher.of(stage1), datasets, arguments.size, arguments.seed)
    out = arguments.stage1 / POPULARITY_FILE
    dataclasses.replace(bank, stage1_sha256=stage1.sha256).write(out)
    count = len(bank.captions)
    text = f"{out}: {count} captions and {count} photos"
    print(json.dumps({"out": str(out), "size": count}) if arguments.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
