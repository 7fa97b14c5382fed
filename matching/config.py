"""Settings as flat frozen dataclasses: JSON file, command-line flag and default are one thing."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class VseInfinityConfig:
    """Stage 1: one embedding per photo and per caption (Chen et al., CVPR 2021)."""

    dimension: int = 384
    hidden: int = 384  # width of the MLP beside the linear projection
    dropout: float = 0.1


@dataclass(frozen=True)
class CampConfig:
    """Stage 2: CAMP, form `fast` (Wang et al., ICCV 2019; scalar gate as in the authors' code)."""

    dimension: int = 256
    key_dimension: int = 128  # of the cross-attention: "low dimensional" in section 3.1
    hidden: int = 384  # width of the MLP beside the linear projection
    dropout: float = 0.1


@dataclass(frozen=True)
class VseInfinityTraining:
    epochs: int = 8
    batch_size: int = 256
    learning_rate: float = 8e-4
    backbone_learning_rate: float = 1e-4  # of the tuned text layers
    weight_decay: float = 0.05
    warmup: float = 0.1  # share of the steps
    region_drop: float = 0.3  # size augmentation, VSE-infinity section 4.2
    word_drop: float = 0.1
    average_decay: float = 0.998  # of the running mean of the weights that is kept
    seed: int = 1


@dataclass(frozen=True)
class CampTraining:
    epochs: int = 6
    groups: int = 8  # per step; all pairs inside a group are scored
    group_size: int = 16  # photos that stage 1 takes for each other
    pool_size: int = 1024  # photos that the groups of an epoch's part are drawn from
    learning_rate: float = 5e-4
    backbone_learning_rate: float = 5e-5
    weight_decay: float = 0.05
    warmup: float = 0.1
    region_drop: float = 0.1
    word_drop: float = 0.05
    binary_weight: float = 0.5  # hardest-negative BCE (CAMP eq. 14, with the right sign)
    gate_weight: float = 0.5  # gates of matching pairs up, of mismatched pairs down
    average_decay: float = 0.998
    seed: int = 1


def settings_from(kind: type[Settings], values: dict[str, Any], where: str) -> Settings:
    """Builds settings from JSON; an unknown or missing key is an error that names it."""
    names = {field.name for field in dataclasses.fields(kind)}
    for key in sorted(values.keys() ^ names):
        problem = "is missing" if key in names else "is not known"
        raise ValueError(f"{where}: setting {key!r} {problem}; {kind.__name__} has {sorted(names)}")
    return kind(**values)


def add_flags(parser: argparse.ArgumentParser, kind: type) -> None:
    """One flag for each setting, with its default."""
    types = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(
            flag,
            type=types[field.name],
            default=field.default,
            metavar="X",
            help=f"(default {field.default})",
        )


def settings_from_flags(kind: type[Settings], arguments: argparse.Namespace) -> Settings:
    return kind(
        **{field.name: getattr(arguments, field.name) for field in dataclasses.fields(kind)}
    )
