"""The default engine and gallery, opened once; a small gallery that three engines can search."""

import shutil
from pathlib import Path

import pytest

from app.gallery_builder import build_gallery
from app.gallery_encoder import add_encodings
from app.gallery_folder import Gallery
from app.retrieval import Retriever
from matching.captions import CaptionedPhoto, write_captions
from matching.engine import Engine
from matching.engine_description import DEFAULT_ENGINE

ROOT = Path(__file__).parents[2]
ENGINE, GALLERY = ROOT / DEFAULT_ENGINE, ROOT / "gallery" / "default"


@pytest.fixture(scope="session")
def engine() -> Engine:
    return Engine(ENGINE, "cpu")


@pytest.fixture(scope="session")
def retriever(engine) -> Retriever:
    return Retriever(engine, Gallery(GALLERY, engine))


@pytest.fixture(scope="session")
def small_gallery(tmp_path_factory, tiny, engine) -> Path:
    """Seven photos with captions, encoded by the default engine, by MMCA and by DivE + SCAN."""
    photos = tmp_path_factory.mktemp("photos")
    listed = []
    for index, path in enumerate(sorted((GALLERY / "part-00000" / "photos").iterdir())[:7]):
        shutil.copyfile(path, photos / path.name)
        listed.append(CaptionedPhoto(path.name, "test", (f"photo {index}", "a thing outdoors")))
    write_captions(photos / "captions.jsonl", listed)
    folder = tmp_path_factory.mktemp("small") / "gallery"
    build_gallery(photos, folder, engine)
    for name in ("mmca", "dive-scan"):
        add_encodings(folder, Engine(tiny / "engines" / name, "cpu"))
    return folder
