"""Bottom-up features with their boxes (Anderson et al., CVPR 2018): the TSV, and our copy of it.

A line holds image_id, image_w, image_h, num_boxes, boxes and features; the last two are base64 of
float32: boxes (n, 4) as x1, y1, x2, y2 in pixels, features (n, 2048). There is no header.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from matching.command import run_command
from matching.files import read_json, replacing, write_array, write_json

_FIELDS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
CHANNELS = 2048
REGIONS = 36  # fixed files; adaptive ones have 10 to 100
_PHOTOS_A_STEP = 1000  # after so many, what is done is noted: 300 MB, a few seconds


@dataclass(frozen=True)
class BottomUpPhoto:
    image_id: str
    width: int
    height: int
    boxes: np.ndarray  # (n, 4) float32: x1, y1, x2, y2 as fractions of the photo
    features: np.ndarray  # (n, channels) float32


def read_tsv(path: Path, channels: int = CHANNELS, skip: int = 0) -> Iterator[BottomUpPhoto]:
    """Reads one photo at a time, after the first `skip` lines; an error names file and line."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: give a bottom-up .tsv")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if number > skip:
                try:
                    yield _photo_of(line.rstrip(b"\r\n"), channels)
                except (ValueError, binascii.Error) as error:
                    raise ValueError(f"{path}, line {number}: {error}") from None


def _photo_of(line: bytes, channels: int) -> BottomUpPhoto:
    values = line.split(b"\t")
    if len(values) != len(_FIELDS):
        raise ValueError(
            f"{len(values)} columns found, {len(_FIELDS)} expected ({', '.join(_FIELDS)}); "
            "the file may be cut short",
        )
    name = values[0].decode("utf-8", "replace")
    try:
        width, height, count = (int(value) for value in values[1:4])
    except ValueError:
        raise ValueError(f"photo {name}: width, height and boxes must be whole numbers") from None
    if width < 1 or height < 1 or count < 1:
        raise ValueError(f"photo {name} is {width} x {height} with {count} boxes: none may be 0")
    boxes = _decoded(values[4], "boxes", name, count, 4)
    features = _decoded(values[5], "features", name, count, channels)
    fractions = boxes / np.array([width, height, width, height], np.float32)
    return BottomUpPhoto(name, width, height, fractions.clip(0, 1), features)


def _decoded(text: bytes, what: str, name: str, count: int, width: int) -> np.ndarray:
    raw = base64.b64decode(text, validate=True)
    if len(raw) != count * width * 4:
        raise ValueError(
            f"photo {name}: {what} have {len(raw):,} bytes, {count} x {width} float32 "
            f"({count * width * 4:,}) expected; the file may be cut short or of another width",
        )
    return np.frombuffer(raw, "<f4").reshape(count, width)


def write_precomp(
    tsv_files: list[Path],
    ids: list[str],
    out: Path,
    split: str,
    regions: int = REGIONS,
    channels: int = CHANNELS,
) -> Path:
    """Writes `{split}_ims.npy`, `_boxes.npy`, `_ids.txt` (and `_mask.npy`), a row for each id.

    Photos with fewer than `regions` are padded with zeros and get a mask; a photo with more is an
    error. The arrays grow in place under temporary names, with a note of the files that were
    read, so a run that was killed goes on with the next photo, and nothing has its final name
    before it is whole.
    """
    row_of = {name: row for row, name in enumerate(ids)}
    if len(row_of) != len(ids):
        raise ValueError(f"{len(ids) - len(row_of)} of the {len(ids)} ids are given twice")
    final = out / f"{split}_ims.npy"
    if final.exists():
        raise FileExistsError(f"{final} is already there: give another --out or delete it")
    growing = _Growing(out, split, ids, (regions, channels), tsv_files)
    growing.read(row_of)
    growing.finish(ids)
    return final


class _Growing:
    """The arrays of one split while they are made."""

    def __init__(
        self,
        out: Path,
        split: str,
        ids: list[str],
        shape: tuple[int, int],
        tsv_files: list[Path],
    ) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.split, self.tsv_files = out, split, tsv_files
        self.regions, self.channels = shape
        self.note = out / f".{split}_progress.json"
        names = hashlib.sha256("\n".join(ids).encode()).hexdigest()
        files = [[str(path), path.stat().st_size] for path in tsv_files if path.is_file()]
        job = {"ids_sha256": names, "shape": list(shape), "files": files}
        self.job = job
        partial = {name: out / f".{split}_{name}.partial.npy" for name in ("ims", "boxes")}
        known = read_json(self.note) if self.note.exists() else {}
        again = known.get("job") == job and all(path.exists() for path in partial.values())
        self.counts: list[int] = known["counts"] if again else [0] * len(ids)
        self.lines: list[int] = known["lines"] if again else [0] * len(tsv_files)
        mode = "r+" if again else "w+"
        self.partial = partial
        widths = {"ims": self.channels, "boxes": 4}
        self.arrays = {
            name: np.lib.format.open_memmap(
                path,
                mode=mode,
                dtype=np.float32,
                shape=None if again else (len(ids), self.regions, widths[name]),
            )
            for name, path in partial.items()
        }

    def read(self, row_of: dict[str, int]) -> None:
        for index, path in enumerate(self.tsv_files):
            photos = read_tsv(path, self.channels, self.lines[index])
            for number, photo in enumerate(photos, self.lines[index] + 1):
                if photo.image_id in row_of:
                    self._store(path, row_of[photo.image_id], photo)
                self.lines[index] = number
                if number % _PHOTOS_A_STEP == 0:
                    self._save()
            self._save()

    def _store(self, path: Path, row: int, photo: BottomUpPhoto) -> None:
        count = len(photo.features)
        if count > self.regions:
            raise ValueError(
                f"{path}: photo {photo.image_id} has {count} regions, at most {self.regions} "
                "expected: give a larger --regions",
            )
        self.arrays["ims"][row, :count] = photo.features
        self.arrays["boxes"][row, :count] = photo.boxes
        self.counts[row] = count

    def _save(self) -> None:
        for array in self.arrays.values():
            array.flush()
        write_json(self.note, {"job": self.job, "counts": self.counts, "lines": self.lines})

    def finish(self, ids: list[str]) -> None:
        missing = [name for name, count in zip(ids, self.counts, strict=True) if not count]
        if missing:
            raise ValueError(
                f"{len(missing):,} of {len(ids):,} photos are in none of "
                f"{', '.join(str(p) for p in self.tsv_files)}: {', '.join(missing[:5])} ...; "
                "the test photos of Karpathy's split are in the trainval file",
            )
        counts = np.array(self.counts)
        if (counts < self.regions).any():
            mask = np.arange(self.regions) < counts[:, None]
            write_array(self.out / f"{self.split}_mask.npy", mask)
        with replacing(self.out / f"{self.split}_ids.txt") as temporary:
            temporary.write_text("".join(f"{name}\n" for name in ids), "utf-8")
        for name in ("boxes", "ims"):  # the regions last: they tell that all is there
            self.partial[name].replace(self.out / f"{self.split}_{name}.npy")
        self.note.unlink()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.bottom_up", description=__doc__)
    parser.add_argument("tsv", type=Path, nargs="+", help="bottom-up .tsv files")
    parser.add_argument("--ids", type=Path, required=True, help="the photos wanted, an id a line")
    parser.add_argument("--out", type=Path, required=True, help="precomp folder to write into")
    parser.add_argument("--split", default="train", help="train, dev, test or testall")
    parser.add_argument("--regions", type=int, default=REGIONS, help="most regions a photo has")
    parser.add_argument("--channels", type=int, default=CHANNELS)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    a = parser.parse_args(argv)
    ids = list(dict.fromkeys(a.ids.read_text("utf-8").split()))
    path = write_precomp(a.tsv, ids, a.out, a.split, a.regions, a.channels)
    summary = {"out": str(path), "photos": len(ids)}
    print(json.dumps(summary) if a.json else f"{path}: regions and boxes of {len(ids):,} photos")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
