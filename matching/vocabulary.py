"""Words and their numbers: what the field's GRU encoders read. Torch-free.

Published checkpoints need the vocabulary that was published with them: its order came from a
Python 2 dictionary and cannot be made again. Those vocabularies were made with the Treebank
tokeniser of nltk; `tokenise` follows its rules as far as captions need them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from matching.files import read_json, write_json
from matching.restricted_pickle import VocabularyRecord, load_pickle

PAD, START, END, UNKNOWN = 0, 1, 2, 3
SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
MASK = "<mask>"  # appended by VSE-infinity (BiGRU) and DivE for their size augmentation
LEAST_COUNT = 4  # SCAN, VSE++ and all that follow them
MAX_WORDS = 47  # CAMP's limit, <start> and <end> not counted; COCO's longest caption has 49 words

# The Treebank rules, in their order; each sets a token apart by spaces.
_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"[“”„‘’«»]|`+", r" \g<0> "),
        (r"^\"|(?<=[ (\[{<])(\"|'{2})", " `` "),
        (r"\"|''", " '' "),
        (r"([:,])(?=[^\d]|$)", r" \1 "),
        (r"\.{2,}", r" \g<0> "),
        (r"[;@#$%&?!*]", r" \g<0> "),
        (r"[\])}>(\[{<]", r" \g<0> "),
        (r"--", " -- "),
        # A full stop ends a sentence: the last one, or one before a space and a new word. One
        # inside a word ("st.", "u.s.") stays unless it is the last of the caption.
        (r"([^.\s])(\.)([\])}>\"'’ ]*)\s*$", r"\1 \2 \3 "),
        (r"([^' ])('(?:s|m|d|ll|re|ve)?)(?= |$)", r"\1 \2 "),
        (r"([^' ])(n't)(?= |$)", r"\1 \2 "),
        (r"\b(can)(not)\b", r" \1 \2 "),
        (r"\b(gim|lem)(me)\b", r" \1 \2 "),
        (r"\b(gon|got|wan)(na|ta)(?=\s|$)", r" \1 \2 "),
    )
)
# nltk parts a text into sentences first, so a stop before the next sentence is a token too.
_SENTENCE_END = re.compile(r"(?<=[^\s.]{3})\.(?=\s+[^\s.])")


def tokenise(caption: str) -> list[str]:
    """Lower-case words and punctuation: "The dog's tail." -> the, dog, 's, tail, ."""
    text = _SENTENCE_END.sub(" .", caption.lower().strip())
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.split()


@dataclass(frozen=True)
class Vocabulary:
    """Numbers of words; the first four are <pad>, <start>, <end> and <unk>."""

    numbers: Mapping[str, int]
    source: str = "vocabulary"  # for error messages

    def __post_init__(self) -> None:
        found = tuple(self.numbers.get(word) for word in SPECIALS)
        if found != (PAD, START, END, UNKNOWN):
            raise ValueError(
                f"{self.source}: {', '.join(SPECIALS)} have the numbers {found}, expected "
                "(0, 1, 2, 3): it is not a vocabulary of this family",
            )
        if sorted(self.numbers.values()) != list(range(len(self.numbers))):
            raise ValueError(
                f"{self.source}: the numbers of its {len(self.numbers):,} words are not 0 to "
                f"{len(self.numbers) - 1:,}, each once: the file is damaged",
            )

    def __len__(self) -> int:
        return len(self.numbers)

    @staticmethod
    def build(
        captions: Iterable[str],
        least_count: int = LEAST_COUNT,
        with_mask: bool = False,
    ) -> Vocabulary:
        """The words that occur often enough: the most frequent first, equals by alphabet."""
        counts = Counter(word for caption in captions for word in tokenise(caption))
        for special in (*SPECIALS, MASK):
            counts.pop(special, None)
        kept = [word for word, count in counts.items() if count >= least_count]
        words = [*SPECIALS, *sorted(kept, key=lambda word: (-counts[word], word))]
        words += [MASK] if with_mask else []
        return Vocabulary({word: number for number, word in enumerate(words)})

    @staticmethod
    def load(path: Path) -> Vocabulary:
        """A published file: JSON, or a pickle (.pkl) read by matching.restricted_pickle."""
        document = load_pickle(path) if path.suffix in (".pkl", ".pickle") else read_json(path)
        if isinstance(document, VocabularyRecord):
            document = vars(document)
        numbers = document.get("word2idx") if isinstance(document, dict) else None
        if not isinstance(numbers, dict) or not all(
            isinstance(word, str) and type(number) is int for word, number in numbers.items()
        ):
            raise ValueError(
                f"{path} has no word2idx of words to numbers: give a vocabulary as SCAN, VSE++ or "
                "CAMP published theirs (JSON or .pkl)",
            )
        return Vocabulary(numbers, str(path))

    def save(self, path: Path) -> None:
        """Writes the published JSON form."""
        words = {str(number): word for number, word in enumerate(self.words)}
        write_json(path, {"word2idx": dict(self.numbers), "idx2word": words, "idx": len(self)})

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words by their number."""
        return tuple(sorted(self.numbers, key=self.numbers.__getitem__))

    @cached_property
    def sha256(self) -> str:
        """Of the words in their order, whatever file they came from."""
        return hashlib.sha256(json.dumps(self.words).encode()).hexdigest()

    def with_mask(self) -> Vocabulary:
        """With <mask> at the end, as VSE-infinity and DivE have it."""
        if MASK in self.numbers:
            return self
        return Vocabulary({**self.numbers, MASK: len(self)}, self.source)

    def ids(self, caption: str, max_words: int = MAX_WORDS) -> list[int]:
        """<start>, the words, <end>; a word that is not known is <unk>."""
        words = tokenise(caption)[:max_words]
        return [START, *(self.numbers.get(word, UNKNOWN) for word in words), END]

    def batch(self, captions: list[str], max_words: int = MAX_WORDS) -> np.ndarray:
        """(B, N) int64, N the longest caption, 0 where there is no word."""
        rows = [self.ids(caption, max_words) for caption in captions]
        batch = np.full((len(rows), max(map(len, rows), default=0)), PAD, np.int64)
        for row, ids in enumerate(rows):
            batch[row, : len(ids)] = ids
        return batch

    def require_size(self, size: int, what: str) -> None:
        """The error for a vocabulary that is not the one `what` was trained with."""
        if len(self) != size:
            raise ValueError(
                f"{self.source} has {len(self):,} words, {what} has {size:,} rows: give the "
                "vocabulary file that was published with it",
            )
