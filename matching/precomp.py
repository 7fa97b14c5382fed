"""The field's features on disk: SCAN's "precomp" folders, memory-mapped.

A folder holds for each split `{split}_ims.npy` (rows, 36, 2048), `{split}_caps.txt` (a caption a
line) and `{split}_ids.txt`. Either every photo has one row, or one row for each caption (the same
features again); both are read. Optional, as matching.bottom_up writes them: `{split}_boxes.npy`
(rows, R, 4), fractions of the photo, and `{split}_mask.npy` (rows, R) for photos with fewer
regions. The regions of COCO's training photos are 31 GiB: only the rows asked for are read.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from matching.captions import CaptionedPhoto

SPLITS = {"train": "train", "dev": "val", "test": "test", "testall": "testall"}  # file -> ours
DEV_CAPTIONS = 5000  # every repository validates on the first 5000 captions of `dev`
CAPTIONS_A_PHOTO = 5  # only used where rows and captions are equal in number
_BYTES_LITERAL = re.compile(r"""^b(['"]).*\1?$""")


@dataclass(frozen=True)
class _Split:
    photos: list[CaptionedPhoto]
    rows: np.ndarray  # (photos,): the row of each photo in `regions`
    regions: np.ndarray  # memory-mapped
    boxes: np.ndarray | None
    mask: np.ndarray | None


class PrecompDataset:
    """The interface of matching.features.Features, on a precomp folder.

    `channels` is what the regions must be wide; None takes any width. `whole_dev` keeps all of
    `dev` instead of its first 5000 captions. Where there is a row for each caption, photos are
    told apart by `{split}_ids.txt`, else `captions_a_photo` of them follow one another.
    """

    def __init__(
        self,
        folder: Path,
        splits: tuple[str, ...] | None = None,
        channels: int | None = None,
        whole_dev: bool = False,
        captions_a_photo: int = CAPTIONS_A_PHOTO,
    ) -> None:
        self.folder = folder
        files = [s for s in SPLITS if (folder / f"{s}_caps.txt").exists()]
        if splits is not None:
            files = [s for s in SPLITS if SPLITS[s] in splits]
        if not files:
            raise FileNotFoundError(
                f"{folder} has no split: {', '.join(SPLITS)} with _ims.npy and _caps.txt are known",
            )
        limits = {"dev": None if whole_dev else DEV_CAPTIONS}
        self._splits = [
            _open_split(folder, split, channels, limits.get(split), captions_a_photo)
            for split in files
        ]
        shapes = {s.regions.shape[1:] for s in self._splits}
        if len(shapes) > 1:
            raise ValueError(
                f"{folder}: the splits have regions of shapes {sorted(shapes)}, one is expected",
            )
        # Nothing in the files tells what made them: regions of one shape are taken for the same.
        self.backbone_sha256 = hashlib.sha256(f"precomp {self.region_shape}".encode()).hexdigest()
        self.photos = [photo for split in self._splits for photo in split.photos]
        self.splits = np.array([photo.split for photo in self.photos])
        counts = [len(photo.captions) for photo in self.photos]
        self.caption_starts = np.concatenate([[0], np.cumsum(counts)])  # by photo, one more
        self._starts = np.cumsum([0, *(len(split.photos) for split in self._splits)])

    @property
    def num_captions(self) -> int:
        return int(self.caption_starts[-1])

    @property
    def region_shape(self) -> tuple[int, ...]:
        return self._splits[0].regions.shape[1:]

    def photos_of(self, split: str) -> np.ndarray:
        """The photos of a split in file order."""
        indices = np.flatnonzero(self.splits == split)
        if not len(indices):
            raise ValueError(f"{self.folder} has no photos of split {split!r}")
        return indices

    def captions_of(self, photo: int) -> np.ndarray:
        return np.arange(self.caption_starts[photo], self.caption_starts[photo + 1])

    def regions(self, photos: np.ndarray) -> np.ndarray:
        """(B, R, C) as stored; only these rows are read from disk."""
        return np.stack([split.regions[row] for split, row in self._places(photos)])

    def region_mask(self, photos: np.ndarray) -> np.ndarray | None:
        """(B, R) bool, or None where every photo has all its regions."""
        if all(split.mask is None for split in self._splits):
            return None
        every = np.ones(self.region_shape[0], bool)
        return np.stack(
            [every if s.mask is None else s.mask[row] for s, row in self._places(photos)]
        )

    def region_boxes(self, photos: np.ndarray) -> np.ndarray | None:
        """(B, R, 4) as fractions, or None if a split has no `{split}_boxes.npy`."""
        if any(split.boxes is None for split in self._splits):
            return None
        return np.stack([split.boxes[row] for split, row in self._places(photos)])

    def _places(self, photos: np.ndarray) -> list[tuple[_Split, int]]:
        owners = np.searchsorted(self._starts, photos, side="right") - 1
        rows = np.asarray(photos) - self._starts[owners]
        parts = zip(owners.tolist(), rows.tolist(), strict=True)
        return [(self._splits[owner], int(self._splits[owner].rows[row])) for owner, row in parts]


def _open_split(
    folder: Path,
    split: str,
    channels: int | None,
    limit: int | None,
    captions_a_photo: int,
) -> _Split:
    regions = open_array(folder / f"{split}_ims.npy")
    if regions.ndim != 3 or (channels is not None and regions.shape[2] != channels):
        raise ValueError(
            f"{folder}/{split}_ims.npy has shape {regions.shape}, expected (photos, regions, "
            f"{channels or 'channels'}): give the features the model was made for",
        )
    captions = read_caption_lines(folder / f"{split}_caps.txt")
    ids = _read_ids(folder / f"{split}_ids.txt", len(regions), len(captions))
    starts, rows = _photo_starts(folder, split, len(regions), len(captions), ids, captions_a_photo)
    photos = []
    for start, end in zip(starts, [*starts[1:], len(captions)], strict=True):
        if limit is not None and end > limit:
            break
        name = _name(split, start, int(rows[len(photos)]), ids, len(regions))
        photos.append(CaptionedPhoto(name, SPLITS[split], tuple(captions[start:end])))
    if not photos:
        raise ValueError(
            f"{folder}/{split}_caps.txt: the first photo has more than {limit} captions",
        )
    boxes = _beside(folder / f"{split}_boxes.npy", (len(regions), regions.shape[1], 4))
    mask = _beside(folder / f"{split}_mask.npy", regions.shape[:2])
    return _Split(photos, np.asarray(rows[: len(photos)]), regions, boxes, mask)


def _photo_starts(
    folder: Path,
    split: str,
    rows: int,
    captions: int,
    ids: list[str] | None,
    captions_a_photo: int,
) -> tuple[list[int], list[int]]:
    """Where each photo's captions start, and its row. The rule of all loaders, for any number."""
    if not rows or captions % rows:
        raise ValueError(
            f"{folder}/{split}_ims.npy has {rows:,} rows, {split}_caps.txt has {captions:,} "
            "captions: a row for each caption is expected, or the same number for each row",
        )
    if captions > rows:  # one row a photo
        each = captions // rows
        return list(range(0, captions, each)), list(range(rows))
    if ids is not None:  # a row for each caption: a photo is a run of one id
        starts = [i for i in range(captions) if not i or ids[i] != ids[i - 1]]
        if len(starts) < captions:
            return starts, starts
    if captions % captions_a_photo:
        raise ValueError(
            f"{folder}/{split}_caps.txt has {captions:,} captions, a row for each: that is no "
            f"multiple of {captions_a_photo} captions a photo",
        )
    starts = list(range(0, captions, captions_a_photo))
    return starts, starts


def _name(split: str, caption: int, row: int, ids: list[str] | None, rows: int) -> str:
    """The id of a photo; the file of ids has a line for each row or for each caption."""
    if ids is None:
        return f"{split}-{row}"
    return ids[row if len(ids) == rows else caption]


def _read_ids(path: Path, rows: int, captions: int) -> list[str] | None:
    if not path.exists():
        return None
    ids = path.read_text("utf-8").split()
    if len(ids) not in (rows, captions):
        raise ValueError(
            f"{path} has {len(ids):,} lines, expected {rows:,} (rows) or {captions:,} (captions)",
        )
    return ids


def read_caption_lines(path: Path) -> list[str]:
    """One caption a line. Refuses captions that a Python 3 script spoiled with str(bytes)."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: a caption a line is expected")
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error})") from None
    # Not splitlines(): a caption may hold a form feed or a line separator of Unicode.
    lines = [line.strip() for line in text.removesuffix("\n").split("\n")]
    for number, line in enumerate(lines, 1):
        if not line:
            raise ValueError(f"{path}, line {number} is empty: a caption a line is expected")
    spoilt = sum(bool(_BYTES_LITERAL.match(line)) for line in lines)
    if spoilt * 2 > len(lines):
        raise ValueError(
            f"{path}: {spoilt:,} of {len(lines):,} captions look like {lines[0][:20]!r}: it was "
            "written with str() of bytes in Python 3, which costs half the recall; write it again "
            "from decoded text",
        )
    return lines


def open_array(path: Path) -> np.ndarray:
    """A memory-mapped .npy; one that is cut short is an error that says by how much."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    try:
        with path.open("rb") as stream:
            version = np.lib.format.read_magic(stream)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read(stream)
            needed = stream.tell() + int(np.prod(shape, dtype=object)) * dtype.itemsize
    except ValueError as error:
        raise ValueError(f"{path} is not an .npy file ({error})") from None
    found = path.stat().st_size
    if found < needed:
        raise ValueError(
            f"{path} is cut short: {found:,} bytes found, {needed:,} expected for its shape "
            f"{shape}; copy it again",
        )
    if dtype.kind != "f":
        raise ValueError(f"{path} holds {dtype}, floating-point numbers are expected")
    return np.load(path, mmap_mode="r")


def _beside(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """An array that may be missing, but not of another shape."""
    if not path.exists():
        return None
    array = np.load(path, mmap_mode="r")
    if array.shape != shape:
        raise ValueError(f"{path} has shape {array.shape}, expected {shape}: make it again")
    return array
