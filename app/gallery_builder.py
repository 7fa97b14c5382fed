"""Making and changing galleries: photos in, a folder out that app.gallery_folder reads."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from app.gallery_encoder import embed_captions
from app.gallery_folder import (
    PART_PHOTOS,
    Item,
    read_items,
    scorer_file,
    stage1_files,
    write_items,
)
from app.gallery_index import GalleryError, Index, index_for
from app.photo_folder import PhotoRecord, read_photo_folder
from matching.engine import Engine
from matching.files import replacing, write_array
from matching.image import PhotoError, open_photo, photo_pixels

LONGEST_SIDE = 640  # of the photos kept in a gallery: enough for the page


@dataclass(frozen=True)
class Growth:
    """What building or adding did."""

    added: int
    left_out: tuple[str, ...] = ()  # a line for each file that could not be read
    dropped: tuple[str, ...] = ()  # titles of encodings that do not cover the new photos


def build_gallery(source: Path, folder: Path, engine: Engine) -> Growth:
    """Makes a gallery, or completes one that was interrupted; see add_photos."""
    if (folder / "gallery.json").exists():
        index = index_for(folder, engine.description, engine.folder)
        known = _known_ids(folder, index)
        wanted = {record.id for record in read_photo_folder(source)}
        if not known <= wanted:
            raise GalleryError(
                f"{folder} already holds a gallery of other photos ({min(known - wanted)}, ...): "
                "use python -m app.gallery add, or give another --out",
            )
    else:
        Index().with_encodings_of(engine.description).write(folder)
    return add_photos(source, folder, engine)


def add_photos(source: Path, folder: Path, engine: Engine) -> Growth:
    """Adds the photos of a folder that are not there yet.

    They are encoded by this engine alone: encodings by other weights, which do not cover them, are
    dropped from the gallery. app.gallery_encoder completes them again.
    """
    index = index_for(folder, engine.description, engine.folder)
    known = _known_ids(folder, index)
    records = read_photo_folder(source)
    fresh = [r for r in records if r.id not in known]
    back = {r.id for r in records} & set(index.removed)
    index = replace(index, removed=tuple(i for i in index.removed if i not in back))
    index.write(folder)
    for leftover in folder.glob(".part.*"):  # of a killed run
        shutil.rmtree(leftover)
    added, problems, dropped = len(back), [], ()
    bar = tqdm(total=len(fresh), desc="photos", unit="photo")
    for start in range(0, len(fresh), PART_PHOTOS):
        name = f"part-{len(index.parts):05d}"
        with tempfile.TemporaryDirectory(dir=folder, prefix=".part.") as temporary:
            part_folder = Path(temporary) / name
            chunk = fresh[start : start + PART_PHOTOS]
            items, unreadable = _make_part(chunk, part_folder, engine, index, bar)
            problems += unreadable
            if not items:
                continue
            shutil.rmtree(folder / name, ignore_errors=True)  # left by a killed run, not in use
            part_folder.rename(folder / name)
        before, index = index, index.with_encodings_only_of(engine.description)
        dropped += _dropped(before, index)
        index = replace(index, parts=(*index.parts, name))
        index.write(folder)
        _delete_unnamed(folder, before, index)
        added += len(items)
    bar.close()
    _write_notice(folder, index)
    return Growth(added, tuple(problems), dropped)


def _known_ids(folder: Path, index: Index) -> set[str]:
    return {item.id for name in index.parts for item in read_items(folder, name)}


def _dropped(before: Index, after: Index) -> tuple[str, ...]:
    kept = (*after.stage1, *after.scorer)
    return tuple(e.title for e in (*before.stage1, *before.scorer) if e not in kept)


def _delete_unnamed(folder: Path, before: Index, after: Index) -> None:
    """Deletes dropped files without a suffix: their names do not tell of what weights they are.

    Those with a suffix stay, so that app.gallery_encoder need only encode the new photos.
    """
    files = [f for e in before.stage1 if e not in after.stage1 for f in stage1_files(e)]
    files += [scorer_file(e) for e in before.scorer if e not in after.scorer]
    for file in files:
        if file in ("embeddings.npy", "captions.npy", "sides.npy"):
            for part in before.parts:
                (folder / part / file).unlink(missing_ok=True)


def _write_notice(folder: Path, index: Index) -> None:
    """NOTICE.md: author, licence and source of every photo that has them."""
    items = [item for name in index.parts for item in read_items(folder, name)]
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
    known = _known_ids(folder, index)
    for photo in ids:
        if photo not in known - set(index.removed):
            raise GalleryError(f"{folder} has no photo with id {photo!r}: nothing was removed")
    replace(index, removed=tuple(sorted({*index.removed, *ids}))).write(folder)


def _make_part(
    records: list[PhotoRecord],
    folder: Path,
    engine: Engine,
    index: Index,
    bar: tqdm,
) -> tuple[list[Item], list[str]]:
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
        embeddings.append(vectors.astype(np.float16))
        sides.append(side.astype(np.float16))
        items += [_keep_photo(record, photo, folder) for record, photo in opened]
    if items:
        stage1 = stage1_files(index.stage1_of(engine.description))
        write_array(folder / stage1[0], np.concatenate(embeddings))
        write_array(folder / stage1[1], embed_captions(items, engine))
        sides_file = scorer_file(index.scorer_of(engine.description))
        write_array(folder / sides_file, np.concatenate(sides))
        write_items(folder, items)
    return items, problems


def _chunks(records: list[PhotoRecord], size: int) -> Iterator[list[PhotoRecord]]:
    for start in range(0, len(records), size):
        yield records[start : start + size]


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
