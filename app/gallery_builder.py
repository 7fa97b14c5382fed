"""Making and changing galleries: photos in, a folder out that app.gallery_folder reads."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from app.gallery_folder import PART_PHOTOS, GalleryError, Index, Item, Part
from app.photo_folder import PhotoRecord, read_photo_folder
from matching.engine import Engine
from matching.files import replacing
from matching.image import PhotoError, open_photo, photo_pixels

LONGEST_SIDE = 640  # of the photos kept in a gallery: enough for the page


def build_gallery(source: Path, folder: Path, engine: Engine) -> tuple[int, list[str]]:
    """Makes a gallery, or completes one that was interrupted; see add_photos."""
    if (folder / "gallery.json").exists():
        index = _index_for(folder, engine)
        known = {item.id for name in index.parts for item in Part.read(folder, name, index).items}
        wanted = {record.id for record in read_photo_folder(source)}
        if not known <= wanted:
            raise GalleryError(
                f"{folder} already holds a gallery of other photos ({min(known - wanted)}, ...): "
                "use python -m app.gallery add, or give another --out",
            )
    else:
        Index(engine.sha256, engine.embedding_width, engine.side_width).write(folder)
    return add_photos(source, folder, engine)


def add_photos(source: Path, folder: Path, engine: Engine) -> tuple[int, list[str]]:
    """Adds the photos of a folder that are not there yet.

    Returns how many were added, and a line for each file that could not be read.
    """
    index = _index_for(folder, engine)
    parts = [Part.read(folder, name, index) for name in index.parts]
    known = {item.id for part in parts for item in part.items}
    fresh = [r for r in read_photo_folder(source) if r.id not in known]
    back = {r.id for r in read_photo_folder(source)} & set(index.removed)
    index = replace(index, removed=tuple(i for i in index.removed if i not in back))
    index.write(folder)
    for leftover in folder.glob(".part.*"):  # of a killed run
        shutil.rmtree(leftover)
    added, problems = len(back), []
    bar = tqdm(total=len(fresh), desc="photos", unit="photo")
    for start in range(0, len(fresh), PART_PHOTOS):
        name = f"part-{len(index.parts):05d}"
        with tempfile.TemporaryDirectory(dir=folder, prefix=".part.") as temporary:
            part_folder = Path(temporary) / name
            part, unreadable = _make_part(
                fresh[start : start + PART_PHOTOS],
                part_folder,
                engine,
                bar,
            )
            problems += unreadable
            if part is None:
                continue
            shutil.rmtree(folder / name, ignore_errors=True)  # left by a killed run, not in use
            part_folder.rename(folder / name)
        index = replace(index, parts=(*index.parts, name))
        index.write(folder)
        added += len(part.items)
    bar.close()
    _write_notice(folder, index)
    return added, problems


def _write_notice(folder: Path, index: Index) -> None:
    """NOTICE.md: author, licence and source of every photo that has them."""
    items = [item for name in index.parts for item in Part.read(folder, name, index).items]
    credited = [item for item in items if item.licence or item.author or item.source]
    if not credited:
        return
    rows = [
        f"| {item.id.rsplit('/', 1)[-1]} | {item.author or 'not stated'} | "
        f"{item.licence or 'not stated'} | {item.source or 'not stated'} |"
        for item in credited
    ]
    head = [
        "# Photos of this gallery",
        "",
        "Each photo belongs to its author and is used under "
        "the licence named here. Large photos were made smaller; nothing else was changed.",
        "",
        "| photo | author | licence | source |",
        "|---|---|---|---|",
    ]
    with replacing(folder / "NOTICE.md") as temporary:
        temporary.write_text("\n".join(head + rows) + "\n", "utf-8")


def remove_photos(folder: Path, ids: list[str]) -> None:
    """Takes photos out of a gallery; their files stay until the gallery is built again."""
    index = Index.read(folder)
    known = {item.id for name in index.parts for item in Part.read(folder, name, index).items}
    for photo in ids:
        if photo not in known - set(index.removed):
            raise GalleryError(f"{folder} has no photo with id {photo!r}: nothing was removed")
    replace(index, removed=tuple(sorted({*index.removed, *ids}))).write(folder)


def _index_for(folder: Path, engine: Engine) -> Index:
    index = Index.read(folder)
    if index.model_sha256 != engine.sha256:
        raise GalleryError(
            f"gallery {folder} was made with model {index.model_sha256[:12]}, the engine "
            f"{engine.folder} is {engine.sha256[:12]}: use that engine or build a new gallery",
        )
    return index


def _make_part(
    records: list[PhotoRecord],
    folder: Path,
    engine: Engine,
    bar: tqdm,
) -> tuple[Part | None, list[str]]:
    items, embeddings, sides, problems = [], [], [], []
    for chunk in _chunks(records, 8):
        opened = []
        for record in chunk:
            try:
                opened.append((record, open_photo(record.path, record.id)))
            except PhotoError as error:
                problems.append(str(error))
        bar.update(len(chunk))
        if not opened:
            continue
        vectors, side = engine.encode_photos([photo_pixels(photo) for _, photo in opened])
        embeddings.append(vectors)
        sides.append(side.astype(np.float16))
        items += [_keep_photo(record, photo, folder) for record, photo in opened]
    if not items:
        return None, problems
    part = Part(
        items, np.concatenate(embeddings), _embed_captions(items, engine), np.concatenate(sides)
    )
    part.write(folder)
    return part, problems


def _chunks(records: list[PhotoRecord], size: int) -> Iterator[list[PhotoRecord]]:
    for start in range(0, len(records), size):
        yield records[start : start + size]


def _embed_captions(items: list[Item], engine: Engine) -> np.ndarray:
    texts = [caption for item in items for caption in item.captions]
    if not texts:
        return np.zeros((0, engine.embedding_width), np.float16)
    captions = [engine.captions.read(text) for text in texts]
    embeddings = np.empty((len(texts), engine.embedding_width), np.float32)
    order = np.argsort([len(c.piece_ids) for c in captions], kind="stable")
    for start in range(0, len(order), 32):
        rows = order[start : start + 32]
        embeddings[rows] = engine.encode_captions([captions[i] for i in rows])[0]
    return embeddings


def _keep_photo(record: PhotoRecord, photo: Image.Image, folder: Path) -> Item:
    """Copies a small photo as it is and saves a large one smaller."""
    name = record.id.replace("/", "--")
    with Image.open(record.path) as original:
        small = max(original.size) <= LONGEST_SIDE and original.format in ("JPEG", "PNG", "WEBP")
        size = original.size
    target = folder / "photos" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if small:
        shutil.copyfile(record.path, target)
    else:
        target = target.with_suffix(".jpg")
        photo.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
        photo.save(target, quality=88)
        size = photo.size
    path = f"{folder.name}/photos/{target.name}"
    return Item(
        record.id, path, *size, record.captions, record.licence, record.author, record.source
    )
