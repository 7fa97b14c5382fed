"""From the authors' names of weights to ours: every name is known, or it is an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import Tensor

from matching.config import EncoderConfig
from matching.conversion.containers import Container
from matching.systems import make_system
from matching.vocabulary import Vocabulary

# Ours alone: the temperature of a loss that the authors do not use. And old versions of torch did
# not count batches, which nothing depends on.
_OURS = ("log_scale", "*.num_batches_tracked")
_OPTIONAL = ("*.num_batches_tracked",)


@dataclass(frozen=True)
class Converted:
    """A model of ours, with what is worth recording about where it came from."""

    system: str
    config: EncoderConfig
    weights: dict[str, Tensor]
    vocabulary: Vocabulary | None
    left_out: tuple[str, ...] = ()  # names of weights that nothing here reads
    source: dict[str, Any] = field(default_factory=dict)


def both(theirs: str, ours: str) -> dict[str, str]:
    """A layer with weight and bias."""
    return {f"{theirs}.{kind}": f"{ours}.{kind}" for kind in ("weight", "bias")}


def batch_norm(theirs: str, ours: str) -> dict[str, str]:
    kinds = ("running_mean", "running_var", "num_batches_tracked")
    return both(theirs, ours) | {f"{theirs}.{kind}": f"{ours}.{kind}" for kind in kinds}


def gru(theirs: str, ours: str, bidirectional: bool) -> dict[str, str]:
    """Their one layer in two directions is two layers here."""
    names = {}
    directions = (
        {"": "forward_gru", "_reverse": "backward_gru"}
        if bidirectional
        else {
            "": "forward_gru",
        }
    )
    for suffix, direction in directions.items():
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            names[f"{theirs}.{kind}_l0{suffix}"] = f"{ours}.{direction}.{kind}_l0"
    return names


def word_reader(part: dict[str, Tensor]) -> dict[str, str]:
    """Embedding and GRU, of one direction or of two."""
    return {"embed.weight": "text.embed.weight"} | gru("rnn", "text", is_bidirectional(part))


def is_bidirectional(part: dict[str, Tensor]) -> bool:
    return any(name.startswith("rnn.") and name.endswith("_reverse") for name in part)


def renamed(
    container: Container,
    part: str,
    names: dict[str, str],
    unused: tuple[str, ...] = (),
) -> tuple[dict[str, Tensor], list[str]]:
    """The weights of a part by our names, and the names that were left out.

    names: their name -> ours. unused: patterns of names that are known to have no effect, or to
    belong to something that is not converted. A name that is neither is an error, and so is one
    that is missing.
    """
    found = container.part(part)
    left_out = [name for name in found if _matches(name, unused)]
    for name in sorted(found.keys() - names.keys() - set(left_out)):
        raise ValueError(
            f"{container.path}: the {part} part has an unknown weight {name!r}: it was made with "
            "other options or by changed code, and cannot be converted",
        )
    for name in names:
        if name not in found and not _matches(name, _OPTIONAL):
            raise ValueError(f"{container.path}: the {part} part lacks {name!r}")
    return {ours: found[name] for name, ours in names.items() if name in found}, left_out


def shape_of(container: Container, part: str, name: str, rank: int) -> tuple[int, ...]:
    """The shape of a weight, from which the sizes of a model follow."""
    weights = container.part(part)
    if name not in weights:
        raise ValueError(f"{container.path}: the {part} part lacks {name!r}")
    shape = tuple(weights[name].shape)
    if len(shape) != rank:
        raise ValueError(f"{container.path}: {name} has shape {shape}, {rank} axes are expected")
    return shape


def fitted(
    container: Container,
    system: str,
    config: EncoderConfig,
    weights: dict[str, Tensor],
) -> dict[str, Tensor]:
    """All weights of the model, each of the right shape; what is ours alone has its first value."""
    expected = make_system(system, config).state_dict()
    for name in sorted(expected.keys() - weights.keys()):
        if not _matches(name, _OURS):
            raise AssertionError(f"the converter of {system} leaves {name} unset")
    for name, tensor in weights.items():
        if tensor.shape != expected[name].shape:
            raise ValueError(
                f"{container.path}: what becomes {name} has shape {tuple(tensor.shape)}, expected "
                f"{tuple(expected[name].shape)} from the file's other weights",
            )
    # Copies: the weights of a GRU may be views of one storage, which cannot be saved apart.
    return {
        name: weights.get(name, own).to(own.dtype).clone().contiguous()
        for name, own in expected.items()
    }


def checked_vocabulary(
    container: Container,
    vocabulary: Vocabulary | None,
    with_mask: bool = False,
) -> Vocabulary:
    """The vocabulary that the text part was trained with, by its size.

    with_mask: the authors append <mask> to the file they published.
    """
    rows, _ = shape_of(container, "text", "embed.weight", 2)
    if vocabulary is None:
        raise ValueError(
            f"{container.path} reads words by a vocabulary of {rows:,}: give the file that was "
            "published with it as --vocabulary",
        )
    if with_mask and len(vocabulary) + 1 == rows:
        vocabulary = vocabulary.with_mask()
    vocabulary.require_size(rows, f"the embedding of {container.path}")
    return vocabulary


def source_of(container: Container, url: str) -> dict[str, Any]:
    return {"repository": url, "file": Path(container.path).name, **container.progress}


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
