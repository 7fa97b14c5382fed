"""A folder of somebody's photos, with captions and attributions if there are any.

`captions.jsonl` ({"file", "captions"} a line) and `attributions.json` (a list of {"file",
"licence", "author", "source"}) may lie in the folder; both are optional.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matching.captions import read_captions
from matching.files import read_json

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}


@dataclass(frozen=True)
class PhotoRecord:
    id: str  # the path inside the folder
    path: Path
    captions: tuple[str, ...]
    licence: str | None
    author: str | None
    source: str | None


def read_photo_folder(folder: Path) -> list[PhotoRecord]:
    """All photos below a folder, sorted by path."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: give a folder of photos")
    captions = {}
    if (folder / "captions.jsonl").is_file():
        captions = {p.file: p.captions for p in read_captions(folder / "captions.jsonl")}
    rights = {}
    if (folder / "attributions.json").is_file():
        rights = {row["file"]: row for row in read_json(folder / "attributions.json")}
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not files:
        raise FileNotFoundError(f"{folder} holds no photos ({', '.join(sorted(SUFFIXES))})")
    records = []
    for path in files:
        name = path.relative_to(folder).as_posix()
        right = rights.get(name, {})
        records.append(
            PhotoRecord(
                name,
                path,
                tuple(captions.get(name, ())),
                right.get("licence"),
                right.get("author"),
                right.get("source"),
            ),
        )
    return records
