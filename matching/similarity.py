"""How stage 1 compares the embeddings of queries and items, for an engine. Torch-free.

An embedding is one vector, or a set of `slots` vectors in a row (DivE). All vectors have unit
length. matching.models.set_similarity has the same for training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from matching.config import one_of

KINDS = ("cosine", "smooth_chamfer", "chamfer", "max", "mean_probability")
_COSINES_A_CHUNK = 4_000_000  # 16 MB of cosines of members at a time


@dataclass(frozen=True)
class Similarity:
    """Callable; symmetric: photos may be the queries, or captions."""

    kind: str = "cosine"
    slots: int = 1
    alpha: float = 16.0  # of smooth_chamfer
    scale: float = 1.0  # of mean_probability: sigmoid(scale cos + shift)
    shift: float = 0.0

    def __post_init__(self) -> None:
        one_of("kind of similarity", self.kind, KINDS)
        if self.slots < 1 or (self.kind == "cosine" and self.slots != 1):
            expected = "1" if self.kind == "cosine" else "at least 1"
            raise ValueError(f"slots of the similarity {self.kind!r}: {self.slots}, not {expected}")

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Similarity:
        """What to_json gave, or a part of it; a key that is not known is an error."""
        names = {field.name for field in dataclasses.fields(cls)}
        for key in sorted(values.keys() - names):
            raise ValueError(f"similarity: setting {key!r} is not known; it has {sorted(names)}")
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __call__(self, queries: np.ndarray, items: np.ndarray) -> np.ndarray:
        """queries (Q, E), items (I, E) -> (Q, I) float32."""
        for name, rows in (("queries", queries), ("items", items)):
            if rows.ndim != 2 or rows.shape[1] != items.shape[-1] or rows.shape[1] % self.slots:
                raise ValueError(
                    f"{name} must have shape (n, E) with the same E of both, in {self.slots} equal "
                    f"parts; queries have {queries.shape}, items {items.shape}: "
                    "were they made with the same model?",
                )
        queries, items = (np.asarray(x, np.float32) for x in (queries, items))
        if self.kind == "cosine":
            return queries @ items.T
        similar = np.empty((len(queries), len(items)), np.float32)
        for rows in self._chunks(len(queries), len(items)):
            similar[rows] = self._of_members(self._member_cosines(queries[rows], items))
        return similar

    def _chunks(self, queries: int, items: int) -> Iterator[slice]:
        step = max(1, _COSINES_A_CHUNK // max(1, items * self.slots**2))
        return (slice(start, start + step) for start in range(0, queries, step))

    def _member_cosines(self, queries: np.ndarray, items: np.ndarray) -> np.ndarray:
        """(Q, K, I, K): every member with every member, in one matrix product."""
        width = items.shape[1] // self.slots
        flat = queries.reshape(-1, width) @ items.reshape(-1, width).T
        return flat.reshape(len(queries), self.slots, len(items), self.slots)

    def _of_members(self, cosines: np.ndarray) -> np.ndarray:
        """(Q, K, I, K) -> (Q, I)."""
        if self.kind == "max":
            return _over(np.maximum, _over(np.maximum, cosines, 3), 1)
        if self.kind == "mean_probability":
            logits = np.float32(self.scale) * cosines + np.float32(self.shift)
            # 1 / (1 + e^-x), in a form that does not overflow.
            probabilities = 0.5 + 0.5 * np.tanh(0.5 * logits)
            return _over(np.add, _over(np.add, probabilities, 3), 1) / self.slots**2
        nearest = self._soft_maximum if self.kind == "smooth_chamfer" else _maximum
        by_query = _over(np.add, nearest(cosines, 3), 1)
        by_item = _over(np.add, nearest(cosines, 1), 2)
        return (by_query + by_item) / (2 * self.slots)

    def _soft_maximum(self, cosines: np.ndarray, axis: int) -> np.ndarray:
        """1 / alpha log sum exp(alpha cos)."""
        alpha = np.float32(self.alpha)
        largest = _maximum(cosines, axis)
        rest = np.exp(alpha * (cosines - np.expand_dims(largest, axis)))
        return largest + np.log(_over(np.add, rest, axis)) / alpha


def _maximum(cosines: np.ndarray, axis: int) -> np.ndarray:
    return _over(np.maximum, cosines, axis)


def _over(combine: Callable[..., np.ndarray], values: np.ndarray, axis: int) -> np.ndarray:
    """A reduction over a short axis, slice by slice: many times faster than ufunc.reduce there."""
    total, *others = np.moveaxis(values, axis, 0)
    for other in others:
        total = combine(total, other)
    return total
