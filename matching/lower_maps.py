"""python -m matching.lower_maps: what the lower image backbone makes of every photo, to disk.

It is never tuned: python -m matching.tune reads its maps instead of running it in every epoch.
Resumable, as python -m matching.prepare.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from matching.captions import read_captions
from matching.command import run_command
from matching.features import (
    PHOTOS_PER_SHARD,
    DatasetDescription,
    begin_folder,
    load_classes,
)
from matching.files import sha256_of
from matching.models.backbones import backbone_sha256
from matching.models.image_backbone import ImageBackbone, LowerImageBackbone
from matching.photo_shards import write_photo_shards
from matching.photos import add_data_flags, open_photo_source

VIEWS = ("plain", "mirrored")


def map_shard(folder: Path, view: str, index: int) -> Path:
    return folder / f"maps-{view}-{index:05d}.npy"


def make_maps(captions_file: Path, photos: Path, out: Path, views: tuple[str, ...]) -> int:
    """Makes or completes the folder `out`; returns how many photos it has."""
    network = LowerImageBackbone(ImageBackbone()).eval()
    description = DatasetDescription(
        sha256_of(captions_file),
        backbone_sha256(network),
        read_captions(captions_file),
    )
    begin_folder(description, out)
    files = [photo.file for photo in description.photos]
    for view in views:
        shard = partial(map_shard, out, view)
        write_photo_shards(network, files, open_photo_source(photos), shard, view == "mirrored")
    return len(files)


class LowerMaps:
    """The maps of one data set, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        description = DatasetDescription.read(folder)
        self.folder = folder
        self.captions_sha256 = description.captions_sha256
        self.backbone_sha256 = description.backbone_sha256
        self.photos = description.photos
        self.splits = np.array([photo.split for photo in self.photos])
        self.shards = -(-len(self.photos) // PHOTOS_PER_SHARD)
        self._views = {
            view: [self._open(map_shard(folder, view, index)) for index in range(self.shards)]
            for view in VIEWS
            if map_shard(folder, view, 0).exists()
        }

    @property
    def has_mirrored(self) -> bool:
        return "mirrored" in self._views

    @cached_property
    def classes(self) -> np.ndarray:
        """Log-probabilities of the published classifier: (photos, classes) fp16."""
        return load_classes(self.folder, self.shards)

    def maps(self, photos: np.ndarray, mirrored: np.ndarray) -> np.ndarray:
        """photos (B,), mirrored (B,) bool -> (B, C, H, W) fp16."""
        views = ("mirrored" if m else "plain" for m in mirrored)
        return np.stack(
            [
                self._views[view][photo // PHOTOS_PER_SHARD][photo % PHOTOS_PER_SHARD]
                for photo, view in zip(photos.tolist(), views, strict=True)
            ]
        )

    @staticmethod
    def _open(path: Path) -> np.ndarray:
        try:
            return np.load(path, mmap_mode="r")
        except (FileNotFoundError, ValueError) as error:
            raise ValueError(
                f"{path} cannot be read ({error}): run python -m matching.lower_maps again",
            ) from None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.lower_maps", description=__doc__)
    add_data_flags(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder of maps to make")
    parser.add_argument("--views", nargs="+", choices=VIEWS, default=list(VIEWS))
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    views = tuple(arguments.views)
    photos = make_maps(arguments.captions, arguments.photos, arguments.out, views)
    summary = {"out": str(arguments.out), "photos": photos, "views": views}
    text = f"{arguments.out}: maps of {photos} photos, {' and '.join(views)}"
    print(json.dumps(summary) if arguments.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
