"""The engines that one gallery can be searched with, each opened when it is first chosen."""

from __future__ import annotations

import threading
from pathlib import Path

from app.gallery_folder import Gallery
from app.gallery_index import Index, index_for
from app.retrieval import Retriever
from matching.engine import Engine
from matching.engine_description import EngineDescription, EngineError


def fitting_engines(gallery: Path, default: Path) -> list[Path]:
    """The default engine and those beside it that the gallery is encoded by, the default first.

    If none fits it is the default alone, so that opening it says why.
    """
    index = Index.read(gallery)
    fitting = [default] if index.fits(EngineDescription.read(default)) else []
    for folder in sorted(default.parent.iterdir()):
        if folder == default or not (folder / "engine.json").is_file():
            continue
        try:
            fits = index.fits(EngineDescription.read(folder))
        except EngineError:  # nobody asked for this one
            continue
        if fits:
            fitting.append(folder)
    return fitting or [default]


class EngineChoice:
    """Engines by name. The first one is opened at once, so that errors come early."""

    def __init__(self, gallery: Path, engines: list[Path], backend: str):
        self._gallery, self._backend = gallery, backend
        self._folders: dict[str, Path] = {}
        for folder in engines:
            description = EngineDescription.read(folder)
            index_for(gallery, description, folder)
            name = description.name
            # Two engines of the same systems are told apart by their folders.
            self._folders[name if name not in self._folders else f"{name}, {folder}"] = folder
        self._opened: dict[str, Retriever] = {}
        self._lock = threading.Lock()
        self.first = self[self.names[0]]

    @property
    def names(self) -> list[str]:
        return list(self._folders)

    def __getitem__(self, name: str) -> Retriever:
        if name not in self._folders:
            known = ", ".join(self._folders)
            raise EngineError(f"there is no engine {name!r} here: choose one of {known}")
        with self._lock:
            if name not in self._opened:
                engine = Engine(self._folders[name], self._backend)
                self._opened[name] = Retriever(engine, Gallery(self._gallery, engine))
            return self._opened[name]
