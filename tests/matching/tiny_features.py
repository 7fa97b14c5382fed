"""A feature folder of random numbers, small enough to train on in seconds."""

from pathlib import Path

import numpy as np

from matching.captions import CaptionedPhoto
from matching.features import DatasetDescription, Pieces, piece_shard, region_shard, swap_shard
from matching.files import write_array
from matching.image import NUM_REGIONS


def write_tiny_features(
    folder: Path, train: int = 40, val: int = 12, test: int = 0, channels: int = 1400
) -> None:
    rng = np.random.default_rng(7)
    splits = ["train"] * train + ["val"] * val + ["test"] * test
    photos = [
        CaptionedPhoto(f"{i}.jpg", split, ("a dog", "two big dogs")[: 1 + i % 2])
        for i, split in enumerate(splits)
    ]
    DatasetDescription("captions", "backbone", photos).write(folder)
    regions = rng.normal(size=(len(photos), NUM_REGIONS, channels)).astype(np.float16)
    write_array(region_shard(folder, 0), regions)
    lengths = [len(c.split()) + 2 for p in photos for c in p.captions]
    words = np.concatenate([[-1, *range(n - 2), -1] for n in lengths]).astype(np.int8)
    hidden = rng.normal(size=(sum(lengths), 384)).astype(np.float16)
    Pieces(hidden, words, np.cumsum(lengths)).write(piece_shard(folder, 0))
    # Every caption of two words has a wrong version, of other hidden states; its last word changed.
    short = np.array(lengths) == 4
    own = np.repeat(short, lengths)
    changed = np.where(short, 1, -1).astype(np.int8)
    swaps = Pieces(-hidden[own], words[own], np.cumsum(np.where(short, lengths, 0)), changed)
    swaps.write(swap_shard(folder, 0))
