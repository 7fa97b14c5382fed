"""Caption files: gzipped JSON lines, one photo a line, with `file`, `split` and `captions`."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CaptionedPhoto:
    file: str
    split: str
    captions: tuple[str, ...]


def read_captions(path: Path) -> list[CaptionedPhoto]:
    """Reads a caption file, gzipped or plain; an error names the file and the line."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: give a file of captions (JSON lines)")
    opener = gzip.open if path.suffix == ".gz" else open
    photos = []
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                photos.append(_photo_of(path, number, line))
    except (EOFError, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read to its end ({error}): copy it again") from None
    if not photos:
        raise ValueError(f"{path} has no lines; one JSON object a photo is expected")
    return photos


def select_photos(path: Path, split: str, limit: int, captions: int) -> list[CaptionedPhoto]:
    """The first `limit` photos of a split in file order, with their first captions."""
    photos = [p for p in read_captions(path) if p.split == split][:limit]
    if not photos:
        raise ValueError(f"{path} has no photos of split {split!r}: give another --split")
    return [CaptionedPhoto(p.file, p.split, p.captions[:captions]) for p in photos]


def write_captions(path: Path, photos: list[CaptionedPhoto]) -> None:
    rows = [{"file": p.file, "split": p.split, "captions": list(p.captions)} for p in photos]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def _photo_of(path: Path, number: int, line: str) -> CaptionedPhoto:
    try:
        record = json.loads(line)
        captions = tuple(c for c in record["captions"] if c.strip())
        photo = CaptionedPhoto(record["file"], record.get("split", "test"), captions)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}, line {number}: an object with file, split, captions is expected ({error})",
        ) from None
    if not captions:
        raise ValueError(f"{path}, line {number}: {photo.file} has no caption")
    return photo
