"""Settings as flat frozen dataclasses: JSON file, command-line flag and default are one thing."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class EncoderConfig:
    """How regions and words reach a system's own space; the same settings for every system."""

    dimension: int = 384
    hidden: int = 384  # width of the MLP beside the linear projection
    dropout: float = 0.1
    # Of regions: `taps` (ours: each tap of the backbone normalised, linear + MLP), `linear` (CAMP,
    # SCAN, VSE-infinity on grids), `linear_mlp` (VSE-infinity on regions), `residual_mlp` (DivE).
    region_encoder: str = "taps"
    region_channels: int = 1400  # 2048 for the field's bottom-up regions
    # Of words: `minilm` (ours), `bigru` or `gru` over a word vocabulary, `bert`.
    word_encoder: str = "minilm"
    vocabulary_size: int = 0  # of bigru and gru, with <pad> <start> <end> <unk>
    word_dimension: int = 300  # of bigru and gru: the embedding of a word


@dataclass(frozen=True)
class VseInfinityConfig(EncoderConfig):
    """VSE-infinity (Chen et al., CVPR 2021) and, with other poolings, VSE++ (Faghri et al., 2018).

    Poolings: `gpo`, `mean`, `max`, `first` ([CLS] or the first region), `last` (last GRU state).
    """

    region_pooling: str = "gpo"
    word_pooling: str = "gpo"
    # Designs of GPO, supplement tables 1 to 3 and 6 to 8.
    pooling_positions: str = "cos_sin"  # or `index`: a learned vector for each rank
    pooling_generator: str = "bigru"  # or `mlp`, `transformer`, `interpolation`
    pooling_per_dimension: bool = False  # coefficients of their own for each dimension
    pooling_features: bool = False  # the sorted features are fed to the generator, too


@dataclass(frozen=True)
class CampConfig(EncoderConfig):
    """CAMP (Wang et al., ICCV 2019): forms and ablations as settings of one module.

    The defaults are the form `fast`; matching.presets names the others.
    """

    dimension: int = 256
    key_dimension: int = 128  # of the cross-attention: "low dimensional" in section 3.1
    # `cross_attention`; `refined` (release: queries and keys apart, then self-attention over the
    # messages, l2norm); `mean` (w/o cross-attn); `none` (base model).
    messages: str = "cross_attention"
    gate: str = "scalar"  # `scalar` (release, fast), `elementwise` (paper), `none`
    fusion: str = "add"  # `add`, `concat`, `product`; `none`: aggregate the messages themselves
    residual: bool = True
    aggregation: str = "attention"  # 1 x d, /sqrt(d); `mlp` (release: 2 layers, 4 heads), `mean`
    # MLP(v* + t*); `mlp_agreement`: that and how far regions and words agree with their messages
    # (the logits of the gates, weighted as the aggregation weights); `mlp_concat` MLP([v*; t*]);
    # `cosine`.
    score: str = "mlp_sum"
    normalise_features: bool = (
        True  # v and t of length sqrt(d); the release leaves them as they are
    )


@dataclass(frozen=True)
class DiveConfig(EncoderConfig):
    """DivE (Kim et al., CVPR 2023): sets of embeddings."""

    slots: int = 4
    iterations: int = 4
    heads: int = 4
    head_dimension: int = 64  # 512 in the authors' code, with dimension 1024
    feed_forward: int = 768  # 4096 in the authors' code
    similarity: str = "smooth_chamfer"  # `chamfer`, `max` (MIL), `mean_probability` (MP)
    alpha: float = 16.0  # of smooth-Chamfer
    # The authors' masking: a padded input still feeds every slot. For their checkpoints only.
    compat: bool = False


@dataclass(frozen=True)
class MmcaConfig(EncoderConfig):
    """MMCA (Wei et al., CVPR 2020): self- and cross-attention, S = i0.c0 + alpha i1.c1."""

    dimension: int = 256
    heads: int = 16
    feed_forward: int = 256  # eq. 4 writes a d x d layer
    filters: int = 256  # of each width of the 1d-CNN
    alpha: float = 0.2


@dataclass(frozen=True)
class ScanConfig(EncoderConfig):
    """SCAN (Lee et al., ECCV 2018)."""

    dimension: int = 256
    direction: str = "t2i"  # words attend to regions; `i2t`: regions attend to words
    aggregate: str = "lse"  # or `mean` (AVG)
    attention_temperature: float = 9.0  # lambda of the softmax: 9 for t2i, 4 for i2t
    aggregate_temperature: float = 6.0  # of LSE: 6 for t2i, 5 for i2t (20 on COCO)


@dataclass(frozen=True)
class Training:
    """How a system is trained; matching.presets holds the values of each system and paper."""

    epochs: int = 8
    groups: int = 1  # per step; all pairs inside a group are scored
    group_size: int = 256  # photos of a group
    # 0: photos of a group are drawn at random. Else they are photos that stage 1 takes for each
    # other, drawn from pools of this size.
    pool_size: int = 0
    captions_a_photo: int = 1  # in a step (DivE: 5)
    epoch_of: str = "photos"  # one random caption a photo; `captions`: every caption once
    # `scratch`; `stage1`: from the encoders of a trained stage 1; `checkpoint`: from all weights of
    # another checkpoint that fit (the stages of CAMP's release).
    start: str = "scratch"
    trained: str = "all"  # `fusion`: fusion, aggregation and score only (CAMP's release, stage 2)
    optimiser: str = "adamw"  # `adam`, `sgd` (momentum 0.9, Nesterov)
    learning_rate: float = 8e-4
    backbone_learning_rate: float = 1e-4  # of the tuned text layers
    schedule: str = "cosine"  # with warm-up; `step`: a tenth from decay_epoch on
    decay_epoch: int = 0
    weight_decay: float = 0.05
    warmup: float = 0.1  # share of the steps
    clip: float = 2.0  # largest norm of the gradient
    region_drop: float = 0.0  # size augmentation, VSE-infinity section 4.2
    word_drop: float = 0.0
    average_decay: float = 0.998  # of the running mean of the weights that is kept; 0: no mean
    contrastive_weight: float = 0.0  # InfoNCE
    ranking_weight: float = 0.0  # hinge (VSE++, VSE-infinity, SCAN, DivE, MMCA)
    margin: float = 0.2
    hardest: bool = True  # of the hinge and of the BCE: the hardest negative, else all of them
    all_negatives_epochs: int = 0  # the first epochs use all negatives (VSE-infinity)
    reduction: str = "mean"  # over the batch; `sum` (VSE++, SCAN, CAMP, VSE-infinity)
    binary_weight: float = 0.0  # BCE of the pair's probability (CAMP eq. 14, with the right sign)
    gate_weight: float = 0.0  # gates of matching pairs up, of mismatched pairs down
    # Matching pairs and their gates count by this much more than mismatched ones in gate_weight.
    gate_positive: float = 1.0
    # Share of the photos of the same group among the mismatched pairs of gate_weight. The rest are
    # photos of other groups: as good as random ones, which is what the paper counts.
    gate_hard: float = 1.0
    swap_weight: float = 0.0  # the caption above its version with one wrong word (matching.swaps)
    # Photos near the names of the classes that the published classifier sees in them.
    class_weight: float = 0.0
    classes_a_group: int = 96  # half of them as the photos suggest, half at random
    mmd_weight: float = 0.0  # DivE
    diversity_weight: float = 0.0  # DivE
    validation_shortlist: int = 50  # photos and captions that a pair scorer ranks on `val`
    seed: int = 1


def settings_from(kind: type[Settings], values: dict[str, Any], where: str) -> Settings:
    """Builds settings from JSON; an unknown or missing key is an error that names it."""
    names = {field.name for field in dataclasses.fields(kind)}
    for key in sorted(values.keys() ^ names):
        problem = "is missing" if key in names else "is not known"
        raise ValueError(f"{where}: setting {key!r} {problem}; {kind.__name__} has {sorted(names)}")
    return kind(**values)


def one_of(what: str, found: str, expected: tuple[str, ...]) -> str:
    """A setting that is one of some words; the error names it, what it is and what it may be."""
    if found not in expected:
        raise ValueError(f"{what} is {found!r}: it must be one of {', '.join(expected)}")
    return found


def add_flags(parser: argparse.ArgumentParser, kind: type, defaults: Any) -> None:
    """One flag for each setting, with its default."""
    types = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        flag = "--" + field.name.replace("_", "-")
        value = getattr(defaults, field.name)
        if types[field.name] is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag, action=action, default=value)
        else:
            parser.add_argument(flag, type=types[field.name], default=value, metavar="X")


def settings_from_flags(kind: type[Settings], arguments: argparse.Namespace) -> Settings:
    return kind(
        **{field.name: getattr(arguments, field.name) for field in dataclasses.fields(kind)}
    )
