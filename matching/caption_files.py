"""python -m matching.caption_files: the field's caption files, into matching.captions' own form.

Read are Karpathy's JSON (Flickr8k, Flickr30k, COCO), COCO's captions_*.json, and Flickr's token
files: "photo.jpg#0<tab>caption", CSV "image,caption" and "image_name| comment_number| comment".
A photo may have any number of captions.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matching.captions import CaptionedPhoto
from matching.command import run_command
from matching.files import read_json, replacing

_FIRST_CAPTIONS = 5  # sentids[:5]: what everyone reports on; some COCO photos have up to 7


def read_karpathy(path: Path, all_captions: bool = False) -> list[CaptionedPhoto]:
    """Karpathy's splits; `restval` counts as train, as everyone trains on both."""
    photos, limit = [], None if all_captions else _FIRST_CAPTIONS
    for number, image in enumerate(_entries(path, "images")):
        try:
            file = "/".join(filter(None, (image.get("filepath"), image["filename"])))
            split = "train" if image["split"] == "restval" else image["split"]
            captions = [sentence["raw"] for sentence in image["sentences"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}, image {number}: filename, split and sentences with raw are expected "
                f"({error} is missing)",
            ) from None
        photos.append(_photo(path, file, split, captions[:limit]))
    return photos


def read_coco(path: Path, split: str, all_captions: bool = False) -> list[CaptionedPhoto]:
    """COCO's captions_train2014.json and so on: annotations, joined to images by id."""
    try:
        files = {image["id"]: image["file_name"] for image in _entries(path, "images")}
        captions: dict[int, list[str]] = {number: [] for number in files}
        for annotation in _entries(path, "annotations"):
            captions[annotation["image_id"]].append(annotation["caption"])
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: images with id and file_name, annotations with image_id and caption are "
            f"expected ({error} is missing)",
        ) from None
    limit = None if all_captions else _FIRST_CAPTIONS
    return [
        _photo(path, files[number], split, texts[:limit])
        for number, texts in captions.items()
        if texts  # the test photos of COCO have none
    ]


def read_flickr(path: Path, split: str, all_captions: bool = True) -> list[CaptionedPhoto]:
    """A token file of Flickr8k or Flickr30k, in any of its three forms."""
    captions: dict[str, list[str]] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        first = stream.readline()
        stream.seek(0)
        for number, pair in _flickr_pairs(first, stream):
            if pair is None:
                raise ValueError(
                    f"{path}, line {number}: 'photo.jpg#0<tab>caption', 'image,caption' or "
                    "'image_name| comment_number| comment' is expected",
                )
            captions.setdefault(pair[0], []).append(pair[1])
    limit = None if all_captions else _FIRST_CAPTIONS
    photos = [_photo(path, file, split, texts[:limit]) for file, texts in captions.items()]
    if not photos:
        raise ValueError(f"{path} has no captions")
    return photos


def _flickr_pairs(first: str, lines: Iterable[str]) -> Iterable[tuple[int, tuple | None]]:
    """Line numbers with (file, caption), or with None where the line does not fit."""
    if "\t" in first and "#" in first:
        for number, line in enumerate(lines, 1):
            file, tab, caption = line.strip().partition("\t")
            name, hash_mark, _ = file.rpartition("#")
            if line.strip():
                yield number, (name, caption) if tab and hash_mark else None
    elif first.startswith("image_name|"):
        for number, line in enumerate(lines, 1):
            parts = [part.strip() for part in line.strip().split("|", 2)]
            if number > 1 and line.strip():
                # One line of the published file lacks its second bar: "...jpg| 4   A dog runs".
                if len(parts) == 2 and parts[1][:1].isdigit():
                    parts = [parts[0], *parts[1].split(maxsplit=1)]
                yield number, (parts[0], parts[2]) if len(parts) == 3 else None
    else:
        rows = csv.reader(lines)
        for row in rows:
            if row and not (rows.line_num == 1 and row[0] == "image"):
                # A caption with bare commas is split into further columns: join them again.
                pair = (row[0], ",".join(row[1:])) if len(row) > 1 else None
                yield rows.line_num, pair


def read_any(path: Path, split: str = "train", all_captions: bool = False) -> list[CaptionedPhoto]:
    """Tells the forms apart by their content; `split` is for the files that name none."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: give a file of captions")
    if path.suffix != ".json":
        return read_flickr(path, split, all_captions)
    document = read_json(path)
    if isinstance(document, dict) and "annotations" in document:
        return read_coco(path, split, all_captions)
    return read_karpathy(path, all_captions)


def write_jsonl(path: Path, photos: list[CaptionedPhoto]) -> None:
    """A caption file as matching.captions reads it; gzipped if its name ends in .gz."""
    rows = [{"file": p.file, "split": p.split, "captions": list(p.captions)} for p in photos]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8")
    with replacing(path) as temporary:
        # No time stamp: the same captions make the same bytes, and so the same hash.
        temporary.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def _entries(path: Path, key: str) -> list[Any]:
    document = read_json(path)
    entries = document.get(key) if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{path} has no list {key!r}: Karpathy's or COCO's JSON is expected")
    return entries


def _photo(path: Path, file: str, split: str, captions: list[str]) -> CaptionedPhoto:
    kept = tuple(" ".join(text.split()) for text in captions if text.strip())
    if not kept:
        raise ValueError(f"{path}: photo {file} has no caption")
    return CaptionedPhoto(file, split, kept)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.caption_files", description=__doc__)
    parser.add_argument("file", type=Path, help="captions of Karpathy, COCO or Flickr")
    parser.add_argument("--out", type=Path, required=True, help="captions.jsonl or .jsonl.gz")
    parser.add_argument("--split", default="train", help="for files that name no splits")
    parser.add_argument("--all-captions", action="store_true", help="not only the first five")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    a = parser.parse_args(argv)
    photos = read_any(a.file, a.split, a.all_captions)
    write_jsonl(a.out, photos)
    captions = sum(len(photo.captions) for photo in photos)
    summary = {"out": str(a.out), "photos": len(photos), "captions": captions}
    text = "{out}: {photos:,} photos with {captions:,} captions".format(**summary)
    print(json.dumps(summary) if a.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
