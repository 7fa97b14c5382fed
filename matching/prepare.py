"""python -m matching.prepare: features of all photos and captions of a data set, to disk.

Resumable: what is on disk is kept, so a killed run loses one shard (about ten seconds).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from matching.captions import CaptionedPhoto, read_captions
from matching.class_names import class_captions
from matching.command import run_command
from matching.features import (
    CAPTIONS_PER_SHARD,
    PHOTOS_PER_SHARD,
    DatasetDescription,
    Pieces,
    begin_folder,
    class_captions_file,
    class_shard,
    piece_shard,
    region_shard,
    swap_shard,
)
from matching.files import sha256_of, write_array
from matching.lower_maps import LowerMaps, map_shard
from matching.models.backbones import Backbones
from matching.models.image_backbone import UpperImageBackbone
from matching.models.image_views import ONE_VIEW
from matching.models.text_backbone import WIDTH, LowerTextBackbone, backbone_folder
from matching.photo_shards import write_photo_shards, write_shards_of_maps
from matching.photos import add_data_flags, open_photo_source
from matching.swaps import swap
from matching.text import MAX_WORDS, CaptionReader, caption_batch

_CAPTIONS_A_RUN = 64
_SWAP_SEED = 11


def prepare(
    captions_file: Path,
    photos: Path,
    out: Path,
    backbones: Path | None = None,
    swaps: bool = False,
    maps: Path | None = None,
    classes: bool = False,
) -> DatasetDescription:
    """Makes or completes the feature folder `out`, with tuned backbones if a folder is given.

    With a folder of maps (python -m matching.lower_maps) the photos are not read again; what the
    published classifier sees in them (python -m matching.photo_classes) can then be taken along.
    """
    if classes and maps is None:
        raise ValueError("--classes are taken from a folder of maps: give --maps, too")
    networks = Backbones.load(backbones)
    description = DatasetDescription(
        sha256_of(captions_file),
        networks.sha256,
        read_captions(captions_file),
    )
    begin_folder(description, out)
    _prepare_captions(networks.text, description.photos, out)
    if swaps:
        _prepare_swaps(networks.text, description.photos, out)
    shard = partial(region_shard, out)
    if maps is not None:
        if networks.views != ONE_VIEW:
            raise ValueError("--maps are of one view: leave it out for backbones of several views")
        lower = _same_maps(maps, description)
        if classes:
            _prepare_classes(networks.text, lower, out)
        upper = UpperImageBackbone(networks.image)
        write_shards_of_maps(upper, partial(map_shard, lower.folder, "plain"), lower.shards, shard)
        return description
    files = [photo.file for photo in description.photos]
    write_photo_shards(networks.photos, files, open_photo_source(photos), shard)
    return description


def _same_maps(folder: Path, description: DatasetDescription) -> LowerMaps:
    lower = LowerMaps(folder)
    if lower.captions_sha256 != description.captions_sha256:
        raise ValueError(f"{folder} was made from other captions: give the maps of this data set")
    return lower


def _prepare_classes(backbone: LowerTextBackbone, maps: LowerMaps, out: Path) -> None:
    """The classes of each photo, and the hidden states of captions that name them."""
    for index in range(maps.shards):
        path = class_shard(out, index)
        if not path.exists():
            rows = slice(index * PHOTOS_PER_SHARD, (index + 1) * PHOTOS_PER_SHARD)
            write_array(path, maps.classes[rows])
    path = class_captions_file(out)
    if not path.exists():
        reader = CaptionReader(backbone_folder() / "tokenizer.json")
        _caption_pieces(backbone, reader, class_captions()).write(path)


def _prepare_captions(backbone: LowerTextBackbone, photos: list[CaptionedPhoto], out: Path) -> None:
    captions = [caption for photo in photos for caption in photo.captions]
    reader = CaptionReader(backbone_folder() / "tokenizer.json")
    starts = range(0, len(captions), CAPTIONS_PER_SHARD)
    for index, start in enumerate(tqdm(starts, "captions", unit="shard")):
        path = piece_shard(out, index)
        if not path.exists():
            texts = captions[start : start + CAPTIONS_PER_SHARD]
            _caption_pieces(backbone, reader, texts).write(path)


def _prepare_swaps(backbone: LowerTextBackbone, photos: list[CaptionedPhoto], out: Path) -> None:
    """A wrong version of each training caption that allows one."""
    owners = [(photo, caption) for photo in photos for caption in photo.captions]
    reader = CaptionReader(backbone_folder() / "tokenizer.json")
    starts = range(0, len(owners), CAPTIONS_PER_SHARD)
    for index, start in enumerate(tqdm(starts, "swaps", unit="shard")):
        path = swap_shard(out, index)
        if path.exists():
            continue
        rng = np.random.default_rng((_SWAP_SEED, index))
        texts: list[str | None] = []
        changed = []
        for photo, caption in owners[start : start + CAPTIONS_PER_SHARD]:
            found = swap(caption, photo.captions, rng) if photo.split == "train" else None
            usable = found is not None and found.word < MAX_WORDS
            texts.append(found.text if usable else None)
            changed.append(found.word if usable else -1)
        pieces = _caption_pieces(backbone, reader, texts)
        replace(pieces, changed=np.array(changed, np.int8)).write(path)


@torch.inference_mode()
def _caption_pieces(
    backbone: LowerTextBackbone,
    reader: CaptionReader,
    texts: Sequence[str | None],
) -> Pieces:
    """None: no caption, of length 0."""
    captions = [None if text is None else reader.read(text) for text in texts]
    lengths = [0 if c is None else len(c.piece_ids) for c in captions]
    hidden = [np.zeros((0, WIDTH), np.float16)] * len(captions)
    by_length = [i for i in np.argsort(lengths, kind="stable").tolist() if lengths[i]]
    for start in range(0, len(by_length), _CAPTIONS_A_RUN):
        chunk = by_length[start : start + _CAPTIONS_A_RUN]
        batch = caption_batch([captions[i] for i in chunk])
        states = backbone(torch.from_numpy(batch.piece_ids)).half().numpy()
        for row, i in enumerate(chunk):
            hidden[i] = states[row, : lengths[i]]
    words = [np.array([] if c is None else c.piece_words, np.int8) for c in captions]
    return Pieces(np.concatenate(hidden), np.concatenate(words), np.cumsum(lengths))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.prepare", description=__doc__)
    add_data_flags(parser)
    parser.add_argument("--out", type=Path, required=True, help="feature folder to make")
    parser.add_argument(
        "--backbones",
        type=Path,
        help="folder of python -m matching.tune; without it the published backbones",
    )
    parser.add_argument(
        "--swaps",
        action="store_true",
        help="also a wrong version of each training caption, for --swap-weight of matching.train",
    )
    parser.add_argument(
        "--maps",
        type=Path,
        help="folder of python -m matching.lower_maps for this data set: saves half of the time",
    )
    parser.add_argument(
        "--classes",
        action="store_true",
        help="with --maps, also what python -m matching.photo_classes left there, for "
        "--class-weight of matching.train",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    description = prepare(
        arguments.captions,
        arguments.photos,
        arguments.out,
        arguments.backbones,
        arguments.swaps,
        arguments.maps,
        arguments.classes,
    )
    summary = {
        "out": str(arguments.out),
        "photos": len(description.photos),
        "captions": sum(len(p.captions) for p in description.photos),
    }
    text = "{out}: features of {photos} photos and {captions} captions".format(**summary)
    print(json.dumps(summary) if arguments.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
