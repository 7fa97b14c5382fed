"""A gallery folder: photos, captions and what both stages need of them, memory-mapped.

    gallery.json          what it was made with, its parts, the ids that were removed
    part-00000/           at most PART_PHOTOS photos, written whole or not at all
        items.jsonl       id, path, size, captions, licence, author, source: a photo a line
        photos/           the photos, longest side at most 640 pixels
        embeddings.npy    (photos, D) fp16: stage 1
        captions.npy      (captions, D) fp16: stage 1
        sides.npy         (photos, R, S) fp16: stage 2

Only parts that gallery.json names exist for a reader, so every change is one replaced file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from matching.engine import Engine
from matching.files import read_json, replacing, write_json
from matching.image import NUM_REGIONS

FORMAT_VERSION = 1
PART_PHOTOS = 128  # 8 MB of sides and about three seconds of work


class GalleryError(ValueError):
    """A gallery folder that cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Item:
    """One photo of a gallery."""

    id: str
    path: str  # inside the gallery folder
    width: int
    height: int
    captions: tuple[str, ...] = ()
    licence: str | None = None
    author: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class Index:
    """gallery.json."""

    model_sha256: str
    embedding_width: int
    side_width: int
    parts: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        write_json(folder / "gallery.json", {"format_version": FORMAT_VERSION, **asdict(self)})

    @staticmethod
    def read(folder: Path) -> Index:
        if not folder.is_dir():
            raise GalleryError(
                f"gallery {folder} is not a folder: make one with python -m app.gallery build",
            )
        try:
            document = read_json(folder / "gallery.json")
        except (FileNotFoundError, ValueError) as error:
            raise GalleryError(
                f"gallery {folder} cannot be used: {error}; "
                "make it again with python -m app.gallery build",
            ) from None
        found = document.pop("format_version", None) if isinstance(document, dict) else None
        if found != FORMAT_VERSION:
            raise GalleryError(
                f"gallery {folder} has format {found}, this program reads {FORMAT_VERSION}: "
                "make it again with python -m app.gallery build",
            )
        document["parts"], document["removed"] = (
            tuple(document[key]) for key in ("parts", "removed")
        )
        return Index(**document)


@dataclass(frozen=True)
class Part:
    """The arrays and items of one part."""

    items: list[Item]
    embeddings: np.ndarray
    captions: np.ndarray
    sides: np.ndarray

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in self._arrays().items():
            np.save(folder / name, array.astype(np.float16), allow_pickle=False)
        lines = [json.dumps(asdict(item), ensure_ascii=False) for item in self.items]
        with replacing(folder / "items.jsonl") as temporary:
            temporary.write_text("\n".join(lines) + "\n", "utf-8")

    def _arrays(self) -> dict[str, np.ndarray]:
        return {
            "embeddings.npy": self.embeddings,
            "captions.npy": self.captions,
            "sides.npy": self.sides,
        }

    @staticmethod
    def read(gallery: Path, name: str, index: Index) -> Part:
        folder = gallery / name
        remedy = f"python -m app.gallery check {gallery} tells more; build it again"
        try:
            lines = (folder / "items.jsonl").read_text("utf-8").splitlines()
            items = [_item_of(json.loads(line)) for line in lines]
            arrays = [
                np.load(folder / file, mmap_mode="r", allow_pickle=False)
                for file in ("embeddings.npy", "captions.npy", "sides.npy")
            ]
        except (OSError, ValueError, EOFError, TypeError, KeyError) as error:
            raise GalleryError(
                f"gallery {gallery}: {name} is damaged ({error}); {remedy}"
            ) from None
        captions = sum(len(item.captions) for item in items)
        expected = [
            (len(items), index.embedding_width),
            (captions, index.embedding_width),
            (len(items), NUM_REGIONS, index.side_width),
        ]
        for array, shape in zip(arrays, expected, strict=True):
            if array.shape != shape:
                raise GalleryError(
                    f"gallery {gallery}: {name} holds an array of shape {array.shape}, expected "
                    f"{shape}; {remedy}",
                )
        return Part(items, *arrays)


def _item_of(document: dict[str, Any]) -> Item:
    return Item(**{**document, "captions": tuple(document["captions"])})


class Gallery:
    """A gallery opened for search."""

    def __init__(self, folder: Path, engine: Engine):
        self.folder = folder
        index = Index.read(folder)
        self.model_sha256 = index.model_sha256
        if index.model_sha256 != engine.sha256:
            raise GalleryError(
                f"gallery {folder} was made with model {index.model_sha256[:12]}, the engine "
                f"{engine.folder} is {engine.sha256[:12]}: build the gallery again with it",
            )
        parts = [Part.read(folder, name, index) for name in index.parts]
        removed = set(index.removed)
        self.items: list[Item] = []
        self._places: list[tuple[np.ndarray, int]] = []  # where the side of each photo is
        embeddings, caption_embeddings = [], []
        self.captions: list[str] = []
        self.photo_of_caption: list[int] = []
        for part in parts:
            first = 0
            for row, item in enumerate(part.items):
                end = first + len(item.captions)
                if item.id not in removed:
                    self.photo_of_caption += [len(self.items)] * len(item.captions)
                    self.captions += item.captions
                    caption_embeddings.append(part.captions[first:end])
                    self._places.append((part.sides, row))
                    embeddings.append(part.embeddings[row])
                    self.items.append(item)
                first = end
        if not self.items:
            raise GalleryError(
                f"gallery {folder} has no photos: add some with python -m app.gallery add DIR "
                f"--to {folder}",
            )
        self.embeddings = np.stack(embeddings).astype(np.float32)
        self.caption_embeddings = np.concatenate(caption_embeddings).astype(np.float32)

    def sides(self, photos: np.ndarray) -> np.ndarray:
        """(B, R, S) float32."""
        chosen = (self._places[photo] for photo in photos.tolist())
        return np.stack([sides[row] for sides, row in chosen]).astype(np.float32)

    def photo_path(self, photo: int) -> Path:
        return self.folder / self.items[photo].path
