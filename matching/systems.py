"""The systems by name: which module and which settings each has."""

from __future__ import annotations

from torch import nn

from matching.config import (
    CampConfig,
    DiveConfig,
    EncoderConfig,
    MmcaConfig,
    ScanConfig,
    VseInfinityConfig,
)
from matching.models.camp import Camp
from matching.models.dive import Dive
from matching.models.mmca import Mmca
from matching.models.scan import Scan
from matching.models.vse_infinity import VseInfinity

SYSTEMS: dict[str, tuple[type[nn.Module], type[EncoderConfig]]] = {
    "vse_infinity": (VseInfinity, VseInfinityConfig),
    "camp": (Camp, CampConfig),
    "dive": (Dive, DiveConfig),
    "mmca": (Mmca, MmcaConfig),
    "scan": (Scan, ScanConfig),
}
# What each role needs of a module (matching.models.system).
_ROLES = {"stage1": "embedding_width", "scorer": "side_width"}


def make_system(system: str, config: EncoderConfig) -> nn.Module:
    return SYSTEMS[system][0](config)


def can_be(model: nn.Module, role: str) -> bool:
    """Whether a module can be stage 1, or the scorer of stage 2."""
    return getattr(model, _ROLES[role], None) is not None


def is_embedder(model: nn.Module) -> bool:
    """Whether a module is trained by its embeddings; all others are trained by scoring pairs.

    MMCA has embeddings, too, but its score is that of a pair. The base model of CAMP scores pairs
    by its embeddings.
    """
    base_model = isinstance(model, Camp) and model.config.messages == "none"
    return base_model or not can_be(model, "scorer")


def parameters_in_millions(model: nn.Module) -> float:
    return round(sum(p.numel() for p in model.parameters()) / 1e6, 2)
