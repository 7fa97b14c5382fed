"""A checkpoint is a folder: config.json, model.safetensors, metrics.json, and vocab.json where a
system reads words by a vocabulary. No pickle.

Large weights are kept in parts: matching.weight_parts.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from matching.config import settings_from
from matching.files import read_json, write_json
from matching.popularity import Popularity
from matching.ranking import Ranking
from matching.systems import SYSTEMS, can_be, make_system
from matching.vocabulary import Vocabulary
from matching.weight_parts import read_parts, write_parts

FORMAT_VERSION = 2
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    system: str
    model: nn.Module
    config: dict[str, Any]  # the whole config.json
    sha256: str  # of the bytes of model.safetensors, in one file or in parts
    vocabulary: Vocabulary | None = None
    popularity: Popularity = Popularity.none()  # of a stage 1


def save_checkpoint(
    folder: Path,
    system: str,
    weights: dict[str, Tensor],
    model_config: Any,
    details: dict[str, Any],
    vocabulary: Vocabulary | None = None,
    half: bool = True,
) -> None:
    """Writes weights, as fp16 unless they were made elsewhere and must not change.

    The model that is evaluated and exported is the one read back.
    """
    stored = {
        name: (tensor.half() if half and tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in weights.items()
    }
    content = save(stored)
    write_parts(folder / _WEIGHTS, content)
    if vocabulary is not None:
        vocabulary.save(folder / "vocab.json")
    config = {
        "format_version": FORMAT_VERSION,
        "system": system,
        "weights_sha256": hashlib.sha256(content).hexdigest(),
    }
    write_json(
        folder / "config.json",
        {**config, "model": dataclasses.asdict(model_config), **details},
    )


def load_checkpoint(folder: Path, role: str | None = None) -> Checkpoint:
    """Reads a checkpoint, ready to evaluate, or says what is wrong with it.

    Args:
        folder: of the checkpoint.
        role: `stage1` or `scorer`, if only a system that can be that will do.
    """
    config = read_json(folder / "config.json")
    found = (config.get("format_version"), config.get("system"))
    if found[0] != FORMAT_VERSION or found[1] not in SYSTEMS:
        raise ValueError(
            f"{folder}/config.json is of format {found[0]} and system {found[1]!r}, expected "
            f"format {FORMAT_VERSION} and one of {', '.join(SYSTEMS)}: train or convert it again",
        )
    settings = settings_from(SYSTEMS[found[1]][1], config["model"], f"{folder}/config.json")
    model = make_system(found[1], settings)
    # A checkpoint of python -m matching.views has the weights of another one.
    kept_in = folder / config.get("weights_in", ".")
    weights = kept_in / _WEIGHTS
    content = read_parts(weights)
    sha256 = hashlib.sha256(content).hexdigest()
    model.load_state_dict(_read_weights(weights, content, model))
    if config["weights_sha256"] != sha256:
        raise ValueError(
            f"{folder}: {_WEIGHTS} is {sha256[:12]}, its config.json is of "
            f"{config['weights_sha256'][:12]}: saving was interrupted, train or copy it again",
        )
    if role is not None and not can_be(model, role):
        raise ValueError(
            f"{folder} holds {found[1]}, which cannot be {role}: give another checkpoint",
        )
    return Checkpoint(
        folder,
        found[1],
        model.eval(),
        config,
        sha256,
        _read_vocabulary(folder, settings),
        Popularity.beside(kept_in, sha256),
    )


def _read_weights(path: Path, content: bytes, model: nn.Module) -> dict[str, Tensor]:
    try:
        stored = load(content)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}; copy or train it again") from None
    expected = model.state_dict()
    for name in sorted(stored.keys() ^ expected.keys()):
        problem = "lacks" if name in expected else "has an unknown"
        raise ValueError(f"{path} {problem} tensor {name!r}: it does not fit its config.json")
    for name, tensor in stored.items():
        if tensor.shape != expected[name].shape:
            raise ValueError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, its config.json asks for "
                f"{tuple(expected[name].shape)}",
            )
    return {n: t.float() if t.is_floating_point() else t for n, t in stored.items()}


def _read_vocabulary(folder: Path, settings: Any) -> Vocabulary | None:
    if settings.word_encoder not in ("bigru", "gru"):
        return None
    vocabulary = Vocabulary.load(folder / "vocab.json")
    vocabulary.require_size(settings.vocabulary_size, f"the checkpoint {folder}")
    return vocabulary


def record_metrics(folder: Path, name: str, document: dict[str, Any]) -> None:
    """Adds a result to the metrics.json of a checkpoint."""
    path = folder / "metrics.json"
    known = read_json(path) if path.exists() else {}
    write_json(path, {**known, name: document})


def record_ranking(scorer: Path, stage1: Checkpoint, ranking: Ranking) -> None:
    """Keeps the final score that was chosen on `val` for a scorer behind a stage 1."""
    config = read_json(scorer / "config.json")
    rankings = {**config.get("rankings", {}), stage1.sha256: dataclasses.asdict(ranking)}
    write_json(scorer / "config.json", {**config, "rankings": rankings})


def ranking_of(scorer: Checkpoint, stage1: Checkpoint) -> Ranking:
    """The final score of a scorer behind a stage 1."""
    known = scorer.config.get("rankings", {})
    if stage1.sha256 not in known:
        raise ValueError(
            f"{scorer.folder} has no final score behind {stage1.folder}: choose it with python "
            f"-m matching.pair --stage1 {stage1.folder} --scorer {scorer.folder} --features F",
        )
    return Ranking(**known[stage1.sha256])


def same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)
