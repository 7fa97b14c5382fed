"""A gallery folder: photos, captions and what both stages need of them, memory-mapped.

    gallery.json          its parts, the ids that were removed, its encodings (app.gallery_index)
    part-00000/           at most PART_PHOTOS photos, written whole or not at all
        items.jsonl       id, path, size, captions, licence, author, source: a photo a line
        photos/           the photos, longest side at most 640 pixels
        embeddings.npy    (photos, E) fp16: stage 1
        captions.npy      (captions, E) fp16: stage 1
        sides.npy         (photos, X + R, S) fp16: the scorer

A gallery may be encoded by several stages 1 and scorers; the files of further ones have a suffix
(sides-mmca-1a2b3c4d.npy). Only parts and encodings that gallery.json names exist for a reader, so
every change is one replaced file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.gallery_index import Encoding, GalleryError, index_for
from matching.engine import Engine
from matching.files import replacing

PART_PHOTOS = 128  # 8 MB of sides and about three seconds of work


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


def stage1_files(encoding: Encoding) -> tuple[str, str]:
    """Embeddings of photos and of captions."""
    return f"embeddings{encoding.suffix}.npy", f"captions{encoding.suffix}.npy"


def scorer_file(encoding: Encoding) -> str:
    return f"sides{encoding.suffix}.npy"


def read_items(gallery: Path, part: str) -> list[Item]:
    """The photos of a part; no array is opened."""
    try:
        lines = (gallery / part / "items.jsonl").read_text("utf-8").splitlines()
        return [_item_of(json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(gallery, part, str(error)) from None


def write_items(folder: Path, items: list[Item]) -> None:
    lines = [json.dumps(asdict(item), ensure_ascii=False) for item in items]
    with replacing(folder / "items.jsonl") as temporary:
        temporary.write_text("\n".join(lines) + "\n", "utf-8")


def read_part_array(gallery: Path, part: str, file: str, shape: tuple[int, ...]) -> np.ndarray:
    """One array of a part, memory-mapped, of the shape that it must have."""
    try:
        array = np.load(gallery / part / file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(gallery, part, str(error)) from None
    if array.shape != shape:
        raise _damaged(gallery, part, f"{file} has shape {array.shape}, expected {shape}")
    return array


def _damaged(gallery: Path, part: str, reason: str) -> GalleryError:
    return GalleryError(
        f"gallery {gallery}: {part} is damaged ({reason}); build or copy the gallery again",
    )


def _item_of(document: dict[str, Any]) -> Item:
    return Item(**{**document, "captions": tuple(document["captions"])})


@dataclass(frozen=True)
class Part:
    """Items of one part and its arrays for one engine."""

    items: list[Item]
    embeddings: np.ndarray  # (photos, E)
    captions: np.ndarray  # (captions, E)
    sides: np.ndarray  # (photos, X + R, S)

    @staticmethod
    def read(gallery: Path, name: str, stage1: Encoding, scorer: Encoding) -> Part:
        items = read_items(gallery, name)
        captions = sum(len(item.captions) for item in items)
        embeddings_file, captions_file = stage1_files(stage1)
        return Part(
            items,
            read_part_array(gallery, name, embeddings_file, (len(items), *stage1.shape)),
            read_part_array(gallery, name, captions_file, (captions, *stage1.shape)),
            read_part_array(gallery, name, scorer_file(scorer), (len(items), *scorer.shape)),
        )


class Gallery:
    """A gallery opened for search with one engine."""

    def __init__(self, folder: Path, engine: Engine):
        self.folder = folder
        self.index = index_for(folder, engine.description, engine.folder)
        stage1 = self.index.stage1_of(engine.description)
        scorer = self.index.scorer_of(engine.description)
        parts = [Part.read(folder, name, stage1, scorer) for name in self.index.parts]
        removed = set(self.index.removed)
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
        """(B, X + R, S) float32."""
        chosen = (self._places[photo] for photo in photos.tolist())
        return np.stack([sides[row] for sides, row in chosen]).astype(np.float32)

    def photo_path(self, photo: int) -> Path:
        return self.folder / self.items[photo].path
