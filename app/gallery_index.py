"""gallery.json: the parts of a gallery, what was removed, and which weights it is encoded by."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from matching.engine_description import EngineDescription
from matching.files import read_json, write_json
from matching.image import NUM_REGIONS

FORMAT_VERSION = 2


class GalleryError(ValueError):
    """A gallery folder that cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Encoding:
    """What one stage's weights make of every photo; the suffix tells its files from others'."""

    key: str  # of the engine: sha256 of the backbone's and the checkpoint's sha256
    title: str  # for people
    shape: tuple[int, ...]  # of one photo's array
    suffix: str


@dataclass(frozen=True)
class Index:
    """gallery.json. Encodings of stage 1 and of scorers are apart: engines may share one."""

    parts: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    stage1: tuple[Encoding, ...] = ()
    scorer: tuple[Encoding, ...] = ()

    def stage1_of(self, engine: EngineDescription) -> Encoding | None:
        return next((e for e in self.stage1 if e.key == engine.stage1_key), None)

    def scorer_of(self, engine: EngineDescription) -> Encoding | None:
        return next((e for e in self.scorer if e.key == engine.scorer_key), None)

    def fits(self, engine: EngineDescription) -> bool:
        """Whether the gallery can be searched with an engine."""
        return None not in (self.stage1_of(engine), self.scorer_of(engine))

    def with_encodings_of(self, engine: EngineDescription) -> Index:
        """With those that are missing for an engine; the first of each kind has no suffix."""
        index = self
        if index.stage1_of(engine) is None:
            part, shape = engine.stage1, (engine.embedding_width,)
            suffix = _suffix(index.stage1, part.system, engine.stage1_key)
            new = Encoding(engine.stage1_key, part.title, shape, suffix)
            index = replace(index, stage1=(*index.stage1, new))
        if index.scorer_of(engine) is None:
            part = engine.scorer
            shape = (part.extra_positions + NUM_REGIONS, engine.side_width)
            suffix = _suffix(index.scorer, part.system, engine.scorer_key)
            new = Encoding(engine.scorer_key, part.title, shape, suffix)
            index = replace(index, scorer=(*index.scorer, new))
        return index

    def with_encodings_only_of(self, engine: EngineDescription) -> Index:
        return replace(
            self,
            stage1=tuple(e for e in self.stage1 if e.key == engine.stage1_key),
            scorer=tuple(e for e in self.scorer if e.key == engine.scorer_key),
        )

    def write(self, folder: Path) -> None:
        document = {
            "format_version": FORMAT_VERSION,
            "encodings": {
                "stage1": [asdict(encoding) for encoding in self.stage1],
                "scorer": [asdict(encoding) for encoding in self.scorer],
            },
            "parts": self.parts,
            "removed": self.removed,
        }
        write_json(folder / "gallery.json", document)

    @staticmethod
    def read(folder: Path) -> Index:
        remedy = "make it again with python -m app.gallery build"
        if not folder.is_dir():
            raise GalleryError(
                f"gallery {folder} is not a folder: make one with python -m app.gallery build",
            )
        try:
            document = read_json(folder / "gallery.json")
        except (FileNotFoundError, ValueError) as error:
            raise GalleryError(f"gallery {folder} cannot be used: {error}; {remedy}") from None
        found = document.get("format_version") if isinstance(document, dict) else None
        if found != FORMAT_VERSION:
            raise GalleryError(
                f"gallery {folder} has format {found}, this program reads {FORMAT_VERSION}: "
                f"{remedy}",
            )
        try:
            return Index(
                tuple(document["parts"]),
                tuple(document["removed"]),
                _encodings(document["encodings"]["stage1"]),
                _encodings(document["encodings"]["scorer"]),
            )
        except (KeyError, TypeError) as error:
            raise GalleryError(
                f"gallery {folder}: gallery.json lacks or has too much ({error}); {remedy}"
            ) from None


def index_for(folder: Path, engine: EngineDescription, engine_folder: Path) -> Index:
    """The index of a gallery that an engine can search, or what to do about it."""
    index = Index.read(folder)
    if not index.fits(engine):
        known = " and ".join(", ".join(e.title for e in kind) for kind in _kinds(index))
        raise GalleryError(
            f"gallery {folder} is encoded by {known or 'nothing'} of other weights than the engine "
            f"{engine_folder} ({engine.name}): python -m app.gallery encode {folder} --engine "
            f"{engine_folder} adds what it needs",
        )
    return index


def _kinds(index: Index) -> list[tuple[Encoding, ...]]:
    return [kind for kind in (index.stage1, index.scorer) if kind]


def _encodings(listed: list[dict[str, Any]]) -> tuple[Encoding, ...]:
    return tuple(Encoding(**{**entry, "shape": tuple(entry["shape"])}) for entry in listed)


def _suffix(known: tuple[Encoding, ...], system: str, key: str) -> str:
    # The key is in the name: a file that a killed run left can only be of the same weights.
    return f"-{system}-{key[:8]}" if known else ""
