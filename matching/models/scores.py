"""What every pair scorer returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class PairScores(NamedTuple):
    """Leading axes: groups, photos, captions. None: the system has no such part."""

    logit: Tensor  # (..., P, C): what is ranked by
    word_attention: Tensor | None = None  # (..., P, C, N, R): of each word over the regions
    region_attention: Tensor | None = None  # (..., P, C, R, N): of each region over the words
    word_gates: Tensor | None = None  # (..., P, C, N), 0 outside the caption
    region_gates: Tensor | None = None  # (..., P, C, R)
