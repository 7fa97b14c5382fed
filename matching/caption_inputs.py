"""Captions of a data set as the tensors that a word encoder takes.

`minilm`: hidden states of the frozen layers, which our feature folders hold; `bigru` and `gru`:
ids of a vocabulary; `bert`: ids of WordPieces. Each can also be augmented by dropping words.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from matching.config import EncoderConfig
from matching.datasets import Dataset
from matching.models.text_backbone import backbone_folder
from matching.text import CaptionReader
from matching.vocabulary import MASK, Vocabulary

_MASKED, _RANDOM = 0.5, 0.1  # of the words that are hit; the rest is deleted (VSE-infinity's code)


class CaptionInputs(Protocol):
    def arrays(self, dataset: Dataset, captions: np.ndarray) -> tuple[np.ndarray, ...]: ...
    def lengths(self, dataset: Dataset) -> np.ndarray: ...
    def augmented(self, captions: tuple[Tensor, ...], share: float) -> tuple[Tensor, ...]: ...


class PieceInputs:
    """hidden (B, L, W), piece_mask (B, L), word_pieces (B, N, L)."""

    def arrays(self, dataset: Dataset, captions: np.ndarray) -> tuple[np.ndarray, ...]:
        if not hasattr(dataset, "pieces"):
            raise ValueError(
                f"{dataset.folder} holds no hidden states of MiniLM: train and evaluate there with "
                "a system whose word encoder is bigru, gru or bert",
            )
        pieces = dataset.pieces(captions)
        return pieces.hidden, pieces.piece_mask, pieces.word_pieces

    def lengths(self, dataset: Dataset) -> np.ndarray:
        return dataset.piece_counts

    def augmented(self, captions: tuple[Tensor, ...], share: float) -> tuple[Tensor, ...]:
        hidden, piece_mask, word_pieces = captions
        return hidden, piece_mask, drop_words(word_pieces, share)


class WordIdInputs:
    """word_ids (B, N), 0 where there is none."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary

    def arrays(self, dataset: Dataset, captions: np.ndarray) -> tuple[np.ndarray, ...]:
        return (self._vocabulary.batch([caption_text(dataset, c) for c in captions.tolist()]),)

    def lengths(self, dataset: Dataset) -> np.ndarray:
        texts = (caption for photo in dataset.photos for caption in photo.captions)
        return np.array([len(text.split()) + 2 for text in texts])  # with <start> and <end>

    def augmented(self, captions: tuple[Tensor, ...], share: float) -> tuple[Tensor, ...]:
        return (drop_word_ids(captions[0], share, self._vocabulary.numbers.get(MASK)),)


class WordPieceInputs:
    """piece_ids (B, L), [CLS] and [SEP] included, 0 where there is none."""

    @staticmethod
    @cache
    def _reader() -> CaptionReader:
        return CaptionReader(backbone_folder() / "tokenizer.json")

    def arrays(self, dataset: Dataset, captions: np.ndarray) -> tuple[np.ndarray, ...]:
        read = [self._reader().read(caption_text(dataset, c)) for c in captions.tolist()]
        ids = np.zeros((len(read), max(len(c.piece_ids) for c in read)), np.int64)
        for row, caption in enumerate(read):
            ids[row, : len(caption.piece_ids)] = caption.piece_ids
        return (ids,)

    def lengths(self, dataset: Dataset) -> np.ndarray:
        return WordIdInputs.lengths(self, dataset)

    def augmented(self, captions: tuple[Tensor, ...], share: float) -> tuple[Tensor, ...]:
        return captions if share == 0 else (drop_word_ids(captions[0], share, None),)


def inputs_for(config: EncoderConfig, vocabulary: Vocabulary | None) -> CaptionInputs:
    """What the word encoder of a system takes."""
    if config.word_encoder == "minilm":
        return PieceInputs()
    if config.word_encoder == "bert":
        return WordPieceInputs()
    if vocabulary is None:
        raise ValueError(
            f"word encoder {config.word_encoder} needs a vocabulary: give --vocabulary"
        )
    return WordIdInputs(vocabulary)


def caption_text(dataset: Dataset, caption: int) -> str:
    photo = int(np.searchsorted(dataset.caption_starts, caption, side="right")) - 1
    return dataset.photos[photo].captions[caption - int(dataset.caption_starts[photo])]


def caption_tensors(
    inputs: CaptionInputs,
    dataset: Dataset,
    captions: np.ndarray,
) -> tuple[Tensor, ...]:
    return tuple(as_tensor(array) for array in inputs.arrays(dataset, captions))


def as_tensor(array: np.ndarray) -> Tensor:
    """Half precision is how features are kept, not how they are computed with."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.float() if tensor.dtype == torch.float16 else tensor


def drop_words(word_pieces: Tensor, share: float) -> Tensor:
    """Size augmentation: removes words at random; at least one word of each caption stays.

    word_pieces (B, N, L) -> the same with rows of dropped words moved behind the kept ones.
    """
    present = word_pieces.sum(-1) > 0  # (B, N)
    luck = torch.rand(present.shape)
    keep = present & (luck > share)
    keep = keep | ((luck == luck.masked_fill(~present, -1).amax(1, keepdim=True)) & present)
    order = (~keep).int().argsort(dim=1, stable=True)  # kept words first, in their order
    moved = (word_pieces * keep[..., None]).gather(1, order[..., None].expand_as(word_pieces))
    return moved[:, : int(keep.sum(1).max())]


def drop_word_ids(word_ids: Tensor, share: float, mask_id: int | None) -> Tensor:
    """VSE-infinity's augmentation: half of the hit words are masked, a tenth changed, the rest cut.

    word_ids (B, N) -> (B, at most N). <mask> is the last word of a vocabulary that has it; where
    there is none, hit words are only cut. The first and the last stay: a caption is never empty.
    """
    present = word_ids != 0
    last = present.sum(1, keepdim=True) - 1
    place = torch.arange(word_ids.shape[1]).expand_as(word_ids)
    hit = (torch.rand(word_ids.shape) < share) & present & (place > 0) & (place < last)
    if mask_id is not None:
        fate = torch.rand(word_ids.shape)
        other = torch.randint(4, mask_id, word_ids.shape)  # behind <pad> <start> <end> <unk>
        word_ids = word_ids.masked_fill(hit & (fate < _MASKED), mask_id)
        changed = hit & (fate >= _MASKED) & (fate < _MASKED + _RANDOM)
        word_ids = torch.where(changed, other, word_ids)
        hit = hit & (fate >= _MASKED + _RANDOM)
    keep = present & ~hit
    order = (~keep).int().argsort(dim=1, stable=True)
    return (word_ids * keep).gather(1, order)[:, : int(keep.sum(1).max())]
