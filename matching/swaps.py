"""Captions made wrong in one place: a colour, a number or a noun for another, or two exchanged.

They serve twice: as negatives that a scorer is trained against, and as the attribute test of
python -m matching.attributes. A swap is only made where the new word stands in no caption of the
photo: then, as far as five people have said, the photo does not show it.

Left out on purpose: words for people. Whether "man" or "woman" is right is often not in the photo.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from matching.text import split_words

ATTRIBUTES = ("colour", "number", "noun")
KINDS = (*ATTRIBUTES, "exchange")

# `orange` is left out: it is a fruit as often.
_COLOURS = ("red", "blue", "green", "yellow", "purple", "pink", "black", "white", "brown", "gray")
_NUMBERS = ("two", "three", "four", "five", "six")
# A noun is swapped for one of its own line: both make a sentence that somebody could have written.
_NOUNS = (
    "dog cat horse cow sheep elephant giraffe zebra bear bird",
    "car bus train truck motorcycle bicycle boat airplane",
    "pizza sandwich cake donut banana apple broccoli carrot",
    "chair couch bed table toilet sink desk bench oven refrigerator",
    "skateboard surfboard snowboard frisbee kite umbrella racket",
    "laptop television phone keyboard clock camera book",
    "kitchen bathroom bedroom beach street field forest park",
    "cup bowl plate bottle fork knife spoon vase",
)
_SAME = {"grey": "gray", "plane": "airplane", "bike": "bicycle", "motorbike": "motorcycle"}
_SAME |= {"sofa": "couch", "tv": "television", "doughnut": "donut", "fridge": "refrigerator"}
_PLURALS = {"sheep": "sheep", "broccoli": "broccoli", "bus": "buses", "sandwich": "sandwiches"}
_PLURALS |= {"couch": "couches", "bench": "benches", "beach": "beaches", "knife": "knives"}
# What makes it matter which noun comes first; "a bed and a desk" is as true the other way round.
_ONE_WAY = {"on", "in", "under", "behind", "above", "over", "inside", "riding", "holding", "eating"}


@dataclass(frozen=True)
class Swap:
    """A wrong caption and where it differs."""

    kind: str
    text: str
    word: int  # place of the (first) changed word, as split_words counts
    was: str
    now: str


@dataclass(frozen=True)
class _Known:
    kind: str
    group: tuple[str, ...]  # what it may be swapped for
    base: str
    plural: bool


def _plural(noun: str) -> str:
    return _PLURALS.get(noun, noun + "s")


def _vocabulary() -> dict[str, _Known]:
    words = {c: _Known("colour", _COLOURS, c, False) for c in _COLOURS}
    words |= {n: _Known("number", _NUMBERS, n, False) for n in _NUMBERS}
    for line in _NOUNS:
        group = tuple(line.split())
        for noun in group:
            words[_plural(noun)] = _Known("noun", group, noun, True)
            words[noun] = _Known("noun", group, noun, False)
    for other, base in _SAME.items():
        words[other] = words[base]
        if words[base].kind == "noun":
            words[_plural(other)] = words[_plural(base)]
    return words


_WORDS = _vocabulary()


def swap(
    caption: str,
    captions: Iterable[str],
    rng: np.random.Generator,
    kinds: tuple[str, ...] = KINDS,
) -> Swap | None:
    """A random swap of one of `kinds`; None if the caption allows none.

    Args:
        caption: the true caption.
        captions: all captions of the photo, whose words are all true of it.
        rng: decides kind, place and new word.
        kinds: which swaps may be made.
    """
    spans = split_words(caption)
    words = [caption[start:end].lower() for start, end in spans]
    places = _places(words, kinds)
    if not places:
        return None
    kind = sorted(places)[rng.integers(len(places))]
    if kind == "exchange":
        return _exchanged(caption, spans, words, places[kind], rng)
    true = {_WORDS[w].base for text in captions for w in _lower_words(text) if w in _WORDS}
    place = places[kind][rng.integers(len(places[kind]))]
    known = _WORDS[words[place]]
    wrong = [word for word in known.group if word not in true]
    if not wrong:
        return None
    now = wrong[rng.integers(len(wrong))]
    now = _plural(now) if known.plural else now
    return Swap(kind, _replaced(caption, spans, {place: now}), place, words[place], now)


def _places(words: list[str], kinds: tuple[str, ...]) -> dict[str, list[int]]:
    """Where each kind of swap can be made."""
    found: dict[str, list[int]] = {}
    for place, word in enumerate(words):
        if word in _WORDS:
            found.setdefault(_WORDS[word].kind, []).append(place)
    joined = " ".join(words)
    if "black and white" in joined or "white and black" in joined:
        found.pop("colour", None)  # often the photo's, not a thing's
    nouns = found.get("noun", [])
    if _exchangeable(words, nouns):
        found["exchange"] = nouns
    return {kind: places for kind, places in found.items() if kind in kinds}


def _exchangeable(words: list[str], nouns: list[int]) -> list[tuple[int, int]]:
    """Pairs of different nouns with a word between them that tells them apart."""
    return [
        (first, second)
        for first, second in itertools.combinations(nouns, 2)
        if _WORDS[words[first]].base != _WORDS[words[second]].base
        and _ONE_WAY & set(words[first + 1 : second])
    ]


def _exchanged(
    caption: str,
    spans: list[tuple[int, int]],
    words: list[str],
    nouns: list[int],
    rng: np.random.Generator,
) -> Swap:
    pairs = _exchangeable(words, nouns)
    first, second = pairs[rng.integers(len(pairs))]
    text = _replaced(caption, spans, {first: words[second], second: words[first]})
    return Swap("exchange", text, first, words[first], words[second])


def _replaced(caption: str, spans: list[tuple[int, int]], changes: dict[int, str]) -> str:
    """The caption with words replaced, `a` and `an` before them put right."""
    new = {}
    for place, word in changes.items():
        old = caption[slice(*spans[place])]
        new[place] = word.capitalize() if old[0].isupper() else word
        before = caption[slice(*spans[place - 1])] if place else ""
        if before.lower() in ("a", "an"):
            article = "an" if word[0] in "aeiou" else "a"
            new[place - 1] = article.capitalize() if before[0].isupper() else article
    text = caption
    for place in sorted(new, reverse=True):
        start, end = spans[place]
        text = text[:start] + new[place] + text[end:]
    return text


def _lower_words(text: str) -> list[str]:
    return [text[start:end].lower() for start, end in split_words(text)]
