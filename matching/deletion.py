"""Deletion and insertion curves (Petsiuk et al., BMVC 2018): does a map point at what counts?

Parts are hidden in the order of a map, largest first; the faster the score falls, the better the
map. Insertion starts from nothing and shows them in the same order: the faster it rises, the
better. The area under each curve sums it up.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# Masks (K, parts) bool, True: visible -> scores (K,)
ScoreVisible = Callable[[np.ndarray], np.ndarray]


def visible_masks(order: np.ndarray, steps: int) -> np.ndarray:
    """What is visible after each step of deletion: (steps + 1, parts); the last row shows nothing.

    order: the parts, first to be hidden first.
    """
    parts = len(order)
    place = np.empty(parts, np.int64)
    place[order] = np.arange(parts)
    hidden = np.round(np.linspace(0, parts, steps + 1)).astype(np.int64)
    return place[None, :] >= hidden[:, None]


def curves(score: ScoreVisible, importance: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
    """Scores along deletion and along insertion: (steps + 1,) each."""
    order = np.argsort(-importance, kind="stable")
    deletion = visible_masks(order, steps)
    # Showing the first k of the order is hiding the rest of it, from the end.
    insertion = visible_masks(order[::-1], steps)[::-1]
    scores = score(np.concatenate([deletion, insertion]))
    return scores[: steps + 1], scores[steps + 1 :]


def area(curve: np.ndarray) -> float:
    """The mean height, by trapezoids: the area over a width of 1."""
    return float((curve[1:] + curve[:-1]).mean() / 2)
