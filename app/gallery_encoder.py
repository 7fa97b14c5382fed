"""Encoding a gallery by the weights of a further engine, from the photos that it keeps.

The photos of a gallery are copies of at most 640 pixels; the encoding that a gallery was built with
may have been made from larger originals. Engines read photos at 256 pixels: the two differ little.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from app.gallery_folder import Item, read_items, scorer_file, stage1_files
from app.gallery_index import Index
from matching.engine import Engine
from matching.files import write_array
from matching.image import open_photo, photo_pixels


def add_encodings(folder: Path, engine: Engine) -> list[str]:
    """Adds what an engine needs and the gallery lacks; returns the titles of what was added.

    Each file is written whole or not at all and named by its weights: a killed run goes on where it
    was. gallery.json names an encoding only when every part has it.
    """
    before = Index.read(folder)
    after = before.with_encodings_of(engine.description)
    new = [e for e in (*after.stage1, *after.scorer) if e not in (*before.stage1, *before.scorer)]
    if not new:
        return []
    stage1, scorer = after.stage1_of(engine.description), after.scorer_of(engine.description)
    files: dict[str, str] = {}
    if stage1 in new:
        files |= dict(zip(stage1_files(stage1), ("embeddings", "captions"), strict=True))
    if scorer in new:
        files[scorer_file(scorer)] = "sides"
    for part in tqdm(before.parts, "parts", unit="part"):
        missing = {f: what for f, what in files.items() if not (folder / part / f).exists()}
        if missing:
            _encode_part(folder, part, missing, engine)
    # Photos may have been removed meanwhile: only the encodings of the index change.
    replace(Index.read(folder), stage1=after.stage1, scorer=after.scorer).write(folder)
    return [encoding.title for encoding in new]


def _encode_part(folder: Path, part: str, files: dict[str, str], engine: Engine) -> None:
    """files: what each file holds, by its name."""
    items = read_items(folder, part)
    arrays = {}
    if set(files.values()) & {"embeddings", "sides"}:
        embeddings, sides = [], []
        for start in range(0, len(items), 8):
            photos = [open_photo(folder / i.path, i.id) for i in items[start : start + 8]]
            vectors, side = engine.encode_photos([photo_pixels(photo) for photo in photos])
            embeddings.append(vectors.astype(np.float16))
            sides.append(side.astype(np.float16))
        arrays = {"embeddings": np.concatenate(embeddings), "sides": np.concatenate(sides)}
    if "captions" in files.values():
        arrays["captions"] = embed_captions(items, engine)
    for file, what in files.items():
        write_array(folder / part / file, arrays[what])


def embed_captions(items: list[Item], engine: Engine) -> np.ndarray:
    """Embeddings of all captions of some photos, in their order: (captions, E) fp16."""
    texts = [caption for item in items for caption in item.captions]
    if not texts:
        return np.zeros((0, engine.embedding_width), np.float16)
    captions = [engine.captions.read(text) for text in texts]
    embeddings = np.empty((len(texts), engine.embedding_width), np.float16)
    order = np.argsort([len(c.piece_ids) for c in captions], kind="stable")
    for start in range(0, len(order), 32):
        rows = order[start : start + 32]
        embeddings[rows] = engine.encode_captions([captions[i] for i in rows])[0]
    return embeddings
