"""python -m matching.photo_classes: what the published classifier sees in every photo, to disk.

It reads the maps of python -m matching.lower_maps and writes log-probabilities beside them, for
--class-weight of python -m matching.tune. Resumable, as python -m matching.prepare.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from matching.command import run_command
from matching.features import class_shard
from matching.lower_maps import LowerMaps, map_shard
from matching.models.image_backbone import ImageBackbone
from matching.models.image_classifier import PublishedClassifier
from matching.photo_shards import write_shards_of_maps


def classify(folder: Path) -> int:
    """Completes a folder of maps; returns how many photos it has."""
    maps = LowerMaps(folder)
    network = PublishedClassifier(ImageBackbone()).eval()
    plain = partial(map_shard, folder, "plain")
    write_shards_of_maps(network, plain, maps.shards, partial(class_shard, folder))
    return len(maps.photos)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.photo_classes", description=__doc__)
    parser.add_argument("maps", type=Path, help="folder of python -m matching.lower_maps")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    summary = {"maps": str(arguments.maps), "photos": classify(arguments.maps)}
    text = "{maps}: classes of {photos} photos".format(**summary)
    print(json.dumps(summary) if arguments.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
