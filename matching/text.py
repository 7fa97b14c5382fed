"""From a caption to the WordPieces that the text encoder takes, joined to the words a person sees.

Torch-free: training and the app call the same functions.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

MAX_WORDS = 32  # COCO captions have 10.5 words on average; 0.1 % have more than 32
MAX_PIECES = 64  # WordPieces, [CLS] and [SEP] included
_PAD = 0


class CaptionError(ValueError):
    """A caption that cannot be searched with; the message is meant for the person who wrote it."""


@dataclass(frozen=True)
class Caption:
    """One caption as the model reads it."""

    text: str
    words: tuple[str, ...]  # as written, without the punctuation around them
    spans: tuple[tuple[int, int], ...]  # where each word stands in `text`
    piece_ids: tuple[int, ...]
    piece_words: tuple[int, ...]  # the word of each piece; -1 for [CLS] and [SEP]
    words_found: int  # more than len(words) if the caption was cut

    @property
    def cut(self) -> bool:
        return self.words_found > len(self.words)


@dataclass(frozen=True)
class CaptionBatch:
    """Arrays of the text encoder: see matching/contract.py."""

    piece_ids: np.ndarray  # (B, L) int64, 0 where there is none
    word_pieces: np.ndarray  # (B, N, L) float32: the share of each piece in each word

    @property
    def word_mask(self) -> np.ndarray:
        return self.word_pieces.sum(-1) > 0


def _strip_punctuation(text: str, start: int, end: int) -> tuple[int, int]:
    def is_edge(character: str) -> bool:
        return unicodedata.category(character)[0] in "PZC"

    while start < end and is_edge(text[start]):
        start += 1
    while end > start and is_edge(text[end - 1]):
        end -= 1
    return start, end


def split_words(text: str) -> list[tuple[int, int]]:
    """The spans of the words: parted by white space, without punctuation at either end.

    Some captions of the training data end in " .", some in "." and some in nothing; without
    the punctuation all three read the same.
    """
    spans = (_strip_punctuation(text, *m.span()) for m in re.finditer(r"\S+", text))
    return [(start, end) for start, end in spans if start < end]


class CaptionReader:
    """Turns captions into WordPieces with the tokenizer of the text backbone."""

    def __init__(self, tokenizer_file: Path):
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def read(self, text: str) -> Caption:
        """Reads one caption, cutting it at MAX_WORDS words or MAX_PIECES pieces."""
        spans = split_words(text)
        if not spans:
            raise CaptionError("the caption has no words: type what the photo should show")
        words = [text[start:end] for start, end in spans[:MAX_WORDS]]
        encoding = self._tokenizer.encode(words, is_pretokenized=True)
        ids, owners = encoding.ids, [-1 if w is None else w for w in encoding.word_ids]
        kept_words = len(words)
        if len(ids) > MAX_PIECES:  # keep whole words, then [SEP]
            first_cut = owners[MAX_PIECES - 1]  # the word that would take the place of [SEP]
            cut_at = owners.index(first_cut) if first_cut > 0 else MAX_PIECES - 1
            kept_words = max(first_cut, 1)
            ids, owners = ids[:cut_at] + ids[-1:], owners[:cut_at] + [-1]
        return Caption(
            text=text,
            words=tuple(words[:kept_words]),
            spans=tuple(spans[:kept_words]),
            piece_ids=tuple(ids),
            piece_words=tuple(owners),
            words_found=len(spans),
        )


def caption_batch(captions: list[Caption]) -> CaptionBatch:
    """Pads captions to the longest of the batch."""
    length = max(len(c.piece_ids) for c in captions)
    words = max(len(c.words) for c in captions)
    piece_ids = np.full((len(captions), length), _PAD, np.int64)
    word_pieces = np.zeros((len(captions), words, length), np.float32)
    for row, caption in enumerate(captions):
        piece_ids[row, : len(caption.piece_ids)] = caption.piece_ids
        for piece, word in enumerate(caption.piece_words):
            if word >= 0:
                word_pieces[row, word, piece] = 1
    word_pieces /= np.maximum(word_pieces.sum(-1, keepdims=True), 1)
    return CaptionBatch(piece_ids, word_pieces)
