"""Features of the frozen backbones on disk: made once, memory-mapped by training and evaluation.

A feature folder holds `dataset.json` (photos, splits, captions and what they were made from),
`regions-00000.npy` ... (photos x R x channels, fp16), `pieces-00000.npz` ... (hidden states of
the WordPieces, fp16). If asked for, also `swaps-00000.npz` ... (the same of a wrong version of each
training caption), and `classes-00000.npy` ... with `class-captions.npz` (what the published
classifier sees in each photo, and its classes by name). A shard is written whole or not at all, so
a killed run goes on where it was.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from matching.captions import CaptionedPhoto
from matching.files import read_json, replacing, write_json

FORMAT_VERSION = 1
PHOTOS_PER_SHARD = 512  # about ten seconds of work and 52 MB
CAPTIONS_PER_SHARD = 4096


@dataclass(frozen=True)
class DatasetDescription:
    """What a feature folder was made from; features are only mixed if this is the same."""

    captions_sha256: str
    backbone_sha256: str
    photos: list[CaptionedPhoto]

    def write(self, folder: Path) -> None:
        rows = [[p.file, p.split, list(p.captions)] for p in self.photos]
        head = {"format_version": FORMAT_VERSION, "captions_sha256": self.captions_sha256}
        write_json(
            folder / "dataset.json",
            {**head, "backbone_sha256": self.backbone_sha256, "photos": rows},
        )

    @staticmethod
    def read(folder: Path) -> DatasetDescription:
        document = read_json(folder / "dataset.json")
        if document.get("format_version") != FORMAT_VERSION:
            raise ValueError(
                f"{folder}/dataset.json has format {document.get('format_version')}, expected "
                f"{FORMAT_VERSION}: delete the folder and run python -m matching.prepare again",
            )
        photos = [CaptionedPhoto(f, s, tuple(c)) for f, s, c in document["photos"]]
        return DatasetDescription(
            document["captions_sha256"],
            document["backbone_sha256"],
            photos,
        )


def begin_folder(ours: DatasetDescription, out: Path) -> None:
    """Writes the description, or checks that what is there was made from the same."""
    if not (out / "dataset.json").exists():
        ours.write(out)
        return
    found = DatasetDescription.read(out)
    for field in ("captions_sha256", "backbone_sha256"):
        if getattr(ours, field) != getattr(found, field):
            raise ValueError(
                f"{out} was made with {field} {getattr(found, field)[:12]}, now it is "
                f"{getattr(ours, field)[:12]}: give another --out or delete the folder",
            )


def region_shard(folder: Path, index: int) -> Path:
    return folder / f"regions-{index:05d}.npy"


def swap_shard(folder: Path, index: int) -> Path:
    return folder / f"swaps-{index:05d}.npz"


def class_shard(folder: Path, index: int) -> Path:
    return folder / f"classes-{index:05d}.npy"


def class_captions_file(folder: Path) -> Path:
    return folder / "class-captions.npz"


def load_classes(folder: Path, shards: int) -> np.ndarray:
    """Log-probabilities of the published classifier: (photos, classes) fp16."""
    try:
        return np.concatenate([np.load(class_shard(folder, i)) for i in range(shards)])
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"{folder} holds no classes of its photos ({error}): run python -m "
            "matching.photo_classes on the maps, then python -m matching.prepare --maps --classes",
        ) from None


def piece_shard(folder: Path, index: int) -> Path:
    return folder / f"pieces-{index:05d}.npz"


@dataclass(frozen=True)
class Pieces:
    """Hidden states of the WordPieces of some captions, one after another."""

    hidden: np.ndarray  # (P, D) fp16
    words: np.ndarray  # (P,) int8: the word of each piece, -1 for [CLS] and [SEP]
    ends: np.ndarray  # (captions,) int64: where each caption ends
    # Of wrong captions, (captions,) int8: the word that was changed, -1 where there is none.
    changed: np.ndarray | None = None

    def write(self, path: Path) -> None:
        arrays = {"hidden": self.hidden, "words": self.words, "ends": self.ends}
        if self.changed is not None:
            arrays["changed"] = self.changed
        with replacing(path) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **arrays)

    def of(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Hidden states and words of one caption."""
        start = self.ends[row - 1] if row else 0
        return self.hidden[start : self.ends[row]], self.words[start : self.ends[row]]


def _load_pieces(path: Path) -> Pieces:
    try:
        with np.load(path) as arrays:
            return Pieces(*(arrays.get(n) for n in ("hidden", "words", "ends", "changed")))
    except (FileNotFoundError, zipfile.BadZipFile, ValueError, KeyError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}): run python -m matching.prepare again",
        ) from None


class Features:
    """The features of one data set: regions by photo, hidden states by caption."""

    def __init__(self, folder: Path):
        description = DatasetDescription.read(folder)
        self.folder = folder
        self.backbone_sha256 = description.backbone_sha256
        self.photos = description.photos
        self.splits = np.array([p.split for p in self.photos])
        counts = [len(p.captions) for p in self.photos]
        self.caption_starts = np.concatenate([[0], np.cumsum(counts)])  # by photo, one more
        self._regions = [self._open_regions(i) for i in range(-(-len(counts) // PHOTOS_PER_SHARD))]
        shards = -(-self.num_captions // CAPTIONS_PER_SHARD)
        self._pieces = [_load_pieces(piece_shard(folder, i)) for i in range(shards)]
        self.piece_counts = np.concatenate([np.diff(p.ends, prepend=0) for p in self._pieces])

    @property
    def num_captions(self) -> int:
        return int(self.caption_starts[-1])

    @property
    def region_shape(self) -> tuple[int, ...]:
        return self._regions[0].shape[1:]

    def _open_regions(self, index: int) -> np.ndarray:
        path = region_shard(self.folder, index)
        try:
            return np.load(path, mmap_mode="r")
        except (FileNotFoundError, ValueError) as error:
            raise ValueError(
                f"{path} cannot be read ({error}): run python -m matching.prepare again",
            ) from None

    def photos_of(self, split: str) -> np.ndarray:
        """The photos of a split in file order."""
        indices = np.flatnonzero(self.splits == split)
        if not len(indices):
            raise ValueError(f"{self.folder} has no photos of split {split!r}")
        return indices

    def regions(self, photos: np.ndarray) -> np.ndarray:
        """(B, R, channels) fp16."""
        return np.stack(
            [self._regions[p // PHOTOS_PER_SHARD][p % PHOTOS_PER_SHARD] for p in photos.tolist()],
        )

    def region_mask(self, photos: np.ndarray) -> np.ndarray | None:
        """None: every photo has all its regions."""
        return None

    def captions_of(self, photo: int) -> np.ndarray:
        return np.arange(self.caption_starts[photo], self.caption_starts[photo + 1])

    def pieces(self, captions: np.ndarray) -> CaptionFeatures:
        """Hidden states of captions, padded to the longest."""
        return CaptionFeatures.padded(
            [self._pieces[c // CAPTIONS_PER_SHARD].of(c % CAPTIONS_PER_SHARD) for c in captions]
        )

    @cached_property
    def _swaps(self) -> list[Pieces]:
        return [_load_pieces(swap_shard(self.folder, i)) for i in range(len(self._pieces))]

    def changed_words(self, captions: np.ndarray) -> np.ndarray:
        """Which word the wrong version of each caption changes, -1 if there is none: (B,)."""
        return np.array(
            [self._swaps[c // CAPTIONS_PER_SHARD].changed[c % CAPTIONS_PER_SHARD] for c in captions]
        )

    def swapped(self, captions: np.ndarray) -> CaptionFeatures:
        """Hidden states of the wrong versions of captions that have one."""
        return CaptionFeatures.padded(
            [self._swaps[c // CAPTIONS_PER_SHARD].of(c % CAPTIONS_PER_SHARD) for c in captions]
        )

    @cached_property
    def classes(self) -> np.ndarray:
        """Log-probabilities of the published classifier: (photos, classes) fp16."""
        return load_classes(self.folder, len(self._regions))

    @cached_property
    def _class_captions(self) -> Pieces:
        return _load_pieces(class_captions_file(self.folder))

    def class_captions(self, rows: np.ndarray) -> CaptionFeatures:
        """Hidden states of captions that name classes, numbered as matching.class_names does."""
        return CaptionFeatures.padded([self._class_captions.of(row) for row in rows.tolist()])


@dataclass(frozen=True)
class CaptionFeatures:
    hidden: np.ndarray  # (B, L, D) fp16
    piece_mask: np.ndarray  # (B, L) bool
    word_pieces: np.ndarray  # (B, N, L) float32

    @staticmethod
    def padded(captions: list[tuple[np.ndarray, np.ndarray]]) -> CaptionFeatures:
        """From the hidden states and words of each caption."""
        length = max(len(words) for _, words in captions)
        num_words = max(int(words.max()) + 1 for _, words in captions)
        hidden = np.zeros((len(captions), length, captions[0][0].shape[1]), np.float16)
        piece_mask = np.zeros((len(captions), length), bool)
        word_pieces = np.zeros((len(captions), num_words, length), np.float32)
        for row, (states, words) in enumerate(captions):
            hidden[row, : len(words)] = states
            piece_mask[row, : len(words)] = True
            inside = np.flatnonzero(words >= 0)
            word_pieces[row, words[inside], inside] = 1
        word_pieces /= np.maximum(word_pieces.sum(-1, keepdims=True), 1)
        return CaptionFeatures(hidden, piece_mask, word_pieces)
