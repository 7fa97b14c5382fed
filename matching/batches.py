"""Training batches: which photo with which caption, in an order that the seed alone decides."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from matching.features import Features

Item = TypeVar("Item")


@dataclass(frozen=True)
class Batch:
    """Photos with one caption each, as tensors."""

    regions: Tensor  # (B, R, C) float32
    hidden: Tensor  # (B, L, W) float32
    piece_mask: Tensor  # (B, L) bool
    word_pieces: Tensor  # (B, N, L)

    @property
    def word_mask(self) -> Tensor:
        return self.word_pieces.sum(-1) > 0


class TrainingSet:
    """The train photos of one or more feature folders as one list."""

    def __init__(self, folders: list[Path]):
        self._features = [Features(folder) for folder in folders]
        if len({f.backbone_sha256 for f in self._features}) > 1:
            raise ValueError(
                f"{', '.join(map(str, folders))} were made with different backbones: "
                "run python -m matching.prepare for each again",
            )
        self.backbone_sha256 = self._features[0].backbone_sha256
        splits = [features.photos_of("train") for features in self._features]
        self._source = np.concatenate([np.full(len(s), i) for i, s in enumerate(splits)])
        self._photo = np.concatenate(splits)

    def __len__(self) -> int:
        return len(self._photo)

    def embed_photos(self, embed: Callable[[Features, np.ndarray], np.ndarray]) -> np.ndarray:
        """Embeddings of all photos in the order of this set: (photos, D)."""
        members = [self._photo[self._source == i] for i in range(len(self._features))]
        return np.concatenate([embed(f, m) for f, m in zip(self._features, members, strict=True)])

    def draw_captions(self, seed: int, epoch: int) -> np.ndarray:
        """One caption a photo for an epoch: an index into the photo's captions."""
        draws = np.random.default_rng((seed, epoch, 1)).random(len(self))
        counts = [
            len(self._features[s].photos[p].captions)
            for s, p in zip(self._source, self._photo, strict=True)
        ]
        return (draws * np.array(counts)).astype(np.int64)

    def caption_lengths(self, drawn: np.ndarray) -> np.ndarray:
        """WordPieces of the drawn caption of every photo of the set."""
        lengths = np.empty(len(self), np.int64)
        for source, features in enumerate(self._features):
            rows = np.flatnonzero(self._source == source)
            starts = features.caption_starts[self._photo[rows]]
            lengths[rows] = features.piece_counts[starts + drawn[rows]]
        return lengths

    def batch(self, members: np.ndarray, drawn: np.ndarray) -> Batch:
        """members (B,) positions in this set; drawn: the caption of every photo of the set."""
        regions = np.empty((len(members), *self._features[0].region_shape), np.float16)
        parts: list[tuple[np.ndarray, Features, np.ndarray]] = []
        for source, features in enumerate(self._features):
            rows = np.flatnonzero(self._source[members] == source)
            if len(rows):
                photos = self._photo[members[rows]]
                regions[rows] = features.regions(photos)
                captions = features.caption_starts[photos] + drawn[members[rows]]
                parts.append((rows, features, captions))
        return Batch(torch.from_numpy(regions).float(), *_joined_pieces(len(members), parts))


def _joined_pieces(
    size: int,
    parts: list[tuple[np.ndarray, Features, np.ndarray]],
) -> tuple[Tensor, Tensor, Tensor]:
    pieces = [(rows, features.pieces(captions)) for rows, features, captions in parts]
    length = max(p.hidden.shape[1] for _, p in pieces)
    words = max(p.word_pieces.shape[1] for _, p in pieces)
    hidden = np.zeros((size, length, pieces[0][1].hidden.shape[2]), np.float32)
    piece_mask = np.zeros((size, length), bool)
    word_pieces = np.zeros((size, words, length), np.float32)
    for rows, part in pieces:
        hidden[rows, : part.hidden.shape[1]] = part.hidden
        piece_mask[rows, : part.hidden.shape[1]] = part.piece_mask
        word_pieces[rows, : part.word_pieces.shape[1], : part.hidden.shape[1]] = part.word_pieces
    return tuple(torch.from_numpy(a) for a in (hidden, piece_mask, word_pieces))


def batches_of_like_length(
    order: np.ndarray,
    lengths: np.ndarray,
    batch_size: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Parts `order` into batches whose captions have about the same length: (batches, size).

    Padding would cost as much as the words themselves. Only neighbours of the random order, eight
    batches of them, are sorted together.
    """
    batches = []
    for start in range(0, len(order), 8 * batch_size):
        block = order[start : start + 8 * batch_size]
        block = block[: len(block) // batch_size * batch_size]
        ranked = block[np.argsort(lengths[block], kind="stable")].reshape(-1, batch_size)
        batches.append(ranked[rng.permutation(len(ranked))])
    return np.concatenate(batches)


def made_ahead(makers: Iterator[Callable[[], Item]], ahead: int = 3) -> Iterator[Item]:
    """Runs makers in a thread, `ahead` results before they are used."""
    ready: queue.Queue[Item | Exception | None] = queue.Queue(ahead)

    def work() -> None:
        try:
            for make in makers:
                ready.put(make())
            ready.put(None)
        except Exception as error:  # handed to the thread that waits for the batch
            ready.put(error)

    threading.Thread(target=work, daemon=True).start()
    while (item := ready.get()) is not None:
        if isinstance(item, Exception):
            raise item
        yield item


def drop_regions(regions: Tensor, share: float) -> Tensor:
    """Size augmentation: drops `share` of the regions on average, as many in each photo."""
    batch, count, channels = regions.shape
    kept = max(1, round(count * (1 - share * torch.rand(()).item() * 2)))
    index = torch.rand(batch, count).argsort(1)[:, :kept]
    return regions.gather(1, index[..., None].expand(-1, -1, channels))


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
