"""Maps of a pair: how much each region and each word takes part, from attention and gates.

Torch-free. python -m matching.faithfulness measures which of them points at what counts.
"""

from __future__ import annotations

import numpy as np

MAPS = ("attention_x_gate", "attention", "attention_max", "gate")
# What the page shows first: the best of them by python -m matching.faithfulness (docs/results.md).
SHOWN_MAP = "gate"


def region_maps(
    word_attention: np.ndarray,
    word_gates: np.ndarray,
    region_gates: np.ndarray,
) -> dict[str, np.ndarray]:
    """Each map of MAPS over the regions.

    word_attention (..., N, R): where each word looks; word_gates (..., N), 0 outside the caption;
    region_gates (..., R) -> (..., R) each.

    `attention`: how many words look at a region. `attention_max`: how much the one looks that looks
    most, the whole-caption map of the page. `attention_x_gate`: as `attention`, but a word counts
    by its gate, a region by its own.
    """
    present = (word_gates > 0)[..., None]
    looks = np.where(present, word_attention, 0)
    gated = (looks * word_gates[..., None]).sum(-2) * region_gates
    return {
        "attention_x_gate": gated,
        "attention": looks.sum(-2),
        "attention_max": looks.max(-2),
        "gate": region_gates,
    }


def word_maps(
    region_attention: np.ndarray,
    word_gates: np.ndarray,
    region_gates: np.ndarray,
) -> dict[str, np.ndarray]:
    """The same over the words: region_attention (..., R, N) -> (..., N) each."""
    gated = (region_attention * region_gates[..., None]).sum(-2) * word_gates
    return {
        "attention_x_gate": gated,
        "attention": region_attention.sum(-2),
        "attention_max": region_attention.max(-2),
        "gate": word_gates,
    }
