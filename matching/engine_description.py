"""engine.json: what an engine was made from, what its graphs have, what its files must be."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matching.contract import FORMAT_VERSION, PAIR_OUTPUTS, GraphSpec, graphs
from matching.files import read_json, sha256_of, write_json
from matching.image import NUM_REGIONS

DEFAULT_ENGINE = Path("engines/standard")  # from the project's folder; every command starts with it
_REMEDY = "make it again with python -m export.build_onnx"


class EngineError(ValueError):
    """An engine folder that cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Stage1Description:
    system: str
    title: str  # for people
    sha256: str  # of the checkpoint's weights
    similarity: dict[str, Any]  # the settings of matching.similarity.Similarity


@dataclass(frozen=True)
class ScorerDescription:
    system: str
    title: str
    sha256: str
    extra_positions: int  # of its sides, before the regions and words
    outputs: tuple[str, ...]  # of matching.contract.PAIR_OUTPUTS, those that it has


@dataclass(frozen=True)
class EngineDescription:
    name: str  # for people
    stage1: Stage1Description
    scorer: ScorerDescription
    backbone_sha256: str
    opset: int
    precision: str
    num_regions: int
    embedding_width: int
    side_width: int
    ranking: dict[str, float]
    # sha256 by name; ../NAME/FILE is a file of the engine beside this one, shared with it.
    files: dict[str, str]
    parity: dict[str, float]  # largest differences from torch, by graph.output

    @property
    def stage1_key(self) -> str:
        """Names what stage 1 makes of photos and captions, whatever scorer is beside it."""
        return _sha256_of_text(self.backbone_sha256 + self.stage1.sha256)

    @property
    def scorer_key(self) -> str:
        """Names the sides that the scorer makes, whatever stage 1 is beside it."""
        return _sha256_of_text(self.backbone_sha256 + self.scorer.sha256)

    @property
    def sha256(self) -> str:
        """Names all weights together."""
        return _sha256_of_text(self.stage1.sha256 + self.scorer.sha256 + self.backbone_sha256)

    @property
    def graphs(self) -> tuple[GraphSpec, ...]:
        return graphs(self.scorer.extra_positions, self.scorer.outputs)

    def has(self, name: str) -> bool:
        """Whether a file of that name belongs to the engine."""
        return any(Path(file).name == name for file in self.files)

    def path(self, folder: Path, name: str) -> Path:
        """Where a file of the engine lies: in its folder, or in the one it shares it with."""
        for file in self.files:
            if Path(file).name == name:
                return folder / file
        raise EngineError(f"engine {folder}: engine.json names no file {name}; {_REMEDY}")

    def write(self, folder: Path) -> None:
        write_json(folder / "engine.json", {"format_version": FORMAT_VERSION, **asdict(self)})

    @staticmethod
    def read(folder: Path) -> EngineDescription:
        """Reads engine.json alone; check_files looks at the rest of the folder."""
        if not folder.is_dir():
            raise EngineError(
                f"engine {folder} is not a folder: make one with python -m export.build_onnx"
            )
        try:
            document = read_json(folder / "engine.json")
        except (FileNotFoundError, ValueError) as error:
            raise EngineError(f"engine {folder} cannot be used: {error}; {_REMEDY}") from None
        found = document.pop("format_version", None) if isinstance(document, dict) else None
        if found != FORMAT_VERSION:
            raise EngineError(
                f"engine {folder} has format {found}, this program reads {FORMAT_VERSION}: "
                f"{_REMEDY}",
            )
        try:
            description = _description_of(document)
        except (KeyError, TypeError) as error:
            raise EngineError(
                f"engine {folder}: engine.json lacks or has too much ({error}); {_REMEDY}"
            ) from None
        description._check(folder)
        return description

    def _check(self, folder: Path) -> None:
        if self.num_regions != NUM_REGIONS:
            raise EngineError(
                f"engine {folder} has {self.num_regions} regions a photo, this program expects "
                f"{NUM_REGIONS}: {_REMEDY}",
            )
        unknown = sorted(set(self.scorer.outputs) - set(PAIR_OUTPUTS))
        if unknown or "logit" not in self.scorer.outputs:
            raise EngineError(
                f"engine {folder}: its scorer's outputs are {list(self.scorer.outputs)}, expected "
                f"logit and others of {', '.join(PAIR_OUTPUTS)}; {_REMEDY}",
            )

    def check_files(self, folder: Path) -> None:
        """Every file is there and is what it was when the engine was made."""
        for name, sha256 in self.files.items():
            path = folder / name
            if not path.is_file():
                raise EngineError(f"engine {folder} lacks its file {name}: {_REMEDY}")
            if sha256_of(path) != sha256:
                raise EngineError(f"engine {folder}: {name} is truncated or was changed; {_REMEDY}")


def _description_of(document: dict[str, Any]) -> EngineDescription:
    scorer = {**document["scorer"], "outputs": tuple(document["scorer"]["outputs"])}
    parts = {
        "stage1": Stage1Description(**document["stage1"]),
        "scorer": ScorerDescription(**scorer),
    }
    return EngineDescription(**{**document, **parts})


def _sha256_of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
