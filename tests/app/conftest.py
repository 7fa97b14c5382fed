"""The default engine and gallery, opened once."""

from pathlib import Path

import pytest

from app.gallery_folder import Gallery
from app.retrieval import Retriever
from matching.engine import Engine

ROOT = Path(__file__).parents[2]
ENGINE, GALLERY = ROOT / "engines" / "default", ROOT / "gallery" / "default"


@pytest.fixture(scope="session")
def engine() -> Engine:
    return Engine(ENGINE, "cpu")


@pytest.fixture(scope="session")
def retriever(engine) -> Retriever:
    return Retriever(engine, Gallery(GALLERY, engine))
