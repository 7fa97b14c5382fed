"""Training batches: which photo with which captions, in an order that the seed alone decides."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from matching.caption_inputs import CaptionInputs, as_tensor
from matching.class_names import caption_rows, draw_classes
from matching.datasets import Dataset
from matching.features import CaptionFeatures

Item = TypeVar("Item")


@dataclass(frozen=True)
class Batch:
    """Photos with their captions; with k captions a photo they stand together, in its order."""

    regions: Tensor  # (B, R, C) float32
    region_mask: Tensor | None  # (B, R) bool; None: every photo has all regions
    captions: tuple[Tensor, ...]  # what the word encoder takes, first axis B x k
    swaps: SwappedCaptions | None = None
    classes: NamedClasses | None = None


@dataclass(frozen=True)
class NamedClasses:
    """Classes of the published classifier, by name, K for each group of photos."""

    captions: tuple[Tensor, ...]  # what the word encoder takes, first axis groups x K
    log_probabilities: Tensor  # (groups, photos of the group, K)


@dataclass(frozen=True)
class ClassDraw:
    """How many classes a step asks about."""

    groups: int
    a_group: int


@dataclass(frozen=True)
class SwappedCaptions:
    """Wrong versions of the captions of some photos of a batch."""

    photos: Tensor  # (n,) rows of the batch
    captions: tuple[Tensor, ...]  # what the word encoder takes, first axis n
    changed: Tensor  # (n,) the word that is wrong


@dataclass(frozen=True)
class Samples:
    """What an epoch goes through, in the order of the set."""

    photos: np.ndarray  # (S,) positions in the set
    captions: np.ndarray  # (S, k) captions, counted within the photo


class TrainingSet:
    """The train photos of one or more data sets as one list."""

    def __init__(
        self,
        datasets: list[Dataset],
        inputs: CaptionInputs,
        swaps: bool = False,
        classes: ClassDraw | None = None,
    ):
        self._datasets, self._inputs, self._swaps = datasets, inputs, swaps
        self._classes = classes
        if len({d.backbone_sha256 for d in datasets}) > 1:
            raise ValueError(
                f"{', '.join(str(d.folder) for d in datasets)} were made with different backbones: "
                "run python -m matching.prepare for each again",
            )
        self.backbone_sha256 = datasets[0].backbone_sha256
        splits = [dataset.photos_of("train") for dataset in datasets]
        self._source = np.concatenate([np.full(len(s), i) for i, s in enumerate(splits)])
        self._photo = np.concatenate(splits)
        self._counts = np.array(
            [
                len(datasets[s].photos[p].captions)
                for s, p in zip(self._source, self._photo, strict=True)
            ],
        )
        self._lengths = [inputs.lengths(dataset) for dataset in datasets]

    def __len__(self) -> int:
        return len(self._photo)

    def embed_photos(self, embed: Callable[[Dataset, np.ndarray], np.ndarray]) -> np.ndarray:
        """Embeddings of all photos in the order of this set: (photos, E)."""
        members = [self._photo[self._source == i] for i in range(len(self._datasets))]
        return np.concatenate([embed(d, m) for d, m in zip(self._datasets, members, strict=True)])

    def num_samples(self, epoch_of: str) -> int:
        return len(self) if epoch_of == "photos" else int(self._counts.sum())

    def draw(self, seed: int, epoch: int, captions_a_photo: int, epoch_of: str) -> Samples:
        """The samples of an epoch: every photo with random captions, or every caption once."""
        if epoch_of == "captions":
            photos = np.repeat(np.arange(len(self)), self._counts)
            starts = np.cumsum(self._counts) - self._counts
            return Samples(photos, (np.arange(len(photos)) - starts[photos])[:, None])
        rng = np.random.default_rng((seed, epoch, 1))
        if captions_a_photo == 1:
            chosen = (rng.random(len(self)) * self._counts).astype(np.int64)[:, None]
        else:
            # A random order of the photo's captions; one with too few starts over.
            luck = rng.random((len(self), int(self._counts.max())))
            luck[np.arange(luck.shape[1]) >= self._counts[:, None]] = 2
            order = luck.argsort(1)
            columns = np.arange(captions_a_photo) % self._counts[:, None]
            chosen = np.take_along_axis(order, columns, 1)
        return Samples(np.arange(len(self)), chosen)

    def caption_lengths(self, samples: Samples) -> np.ndarray:
        """Tokens of the longest caption of each sample: (S,)."""
        lengths = np.empty(samples.captions.shape, np.int64)
        for source, dataset in enumerate(self._datasets):
            rows = np.flatnonzero(self._source[samples.photos] == source)
            starts = dataset.caption_starts[self._photo[samples.photos[rows]]]
            lengths[rows] = self._lengths[source][starts[:, None] + samples.captions[rows]]
        return lengths.max(1)

    def batch(self, samples: Samples, members: np.ndarray, seed: Sequence[int] = (0,)) -> Batch:
        """members (B,): positions in `samples`; the seed draws the classes, if there are any."""
        photos, chosen = samples.photos[members], samples.captions[members]
        regions = np.empty((len(members), *self._datasets[0].region_shape), np.float16)
        mask = np.ones(regions.shape[:2], bool)
        parts: list[tuple[np.ndarray, tuple[np.ndarray, ...]]] = []
        swaps: list[tuple[np.ndarray, np.ndarray, CaptionFeatures]] = []
        k = chosen.shape[1]
        for source, dataset in enumerate(self._datasets):
            rows = np.flatnonzero(self._source[photos] == source)
            if len(rows):
                own = self._photo[photos[rows]]
                regions[rows] = dataset.regions(own)
                own_mask = dataset.region_mask(own)
                if own_mask is not None:
                    mask[rows] = own_mask
                captions = dataset.caption_starts[own][:, None] + chosen[rows]
                places = rows[:, None] * k + np.arange(k)
                parts.append((places.ravel(), self._inputs.arrays(dataset, captions.ravel())))
                if self._swaps:
                    changed = dataset.changed_words(captions[:, 0])
                    has = changed >= 0
                    if has.any():
                        found = dataset.swapped(captions[has, 0])
                        swaps.append((rows[has], changed[has], found))
        return Batch(
            as_tensor(regions),
            None if mask.all() else torch.from_numpy(mask),
            tuple(as_tensor(a) for a in _joined(len(members) * k, parts)),
            _swapped_captions(swaps) if swaps else None,
            None if self._classes is None else self._named_classes(photos, seed),
        )

    def _named_classes(self, photos: np.ndarray, seed: Sequence[int]) -> NamedClasses:
        rng = np.random.default_rng(seed)
        groups, count = self._classes.groups, self._classes.a_group
        seen = np.stack([self._datasets[self._source[p]].classes[self._photo[p]] for p in photos])
        seen = seen.astype(np.float32).reshape(groups, -1, seen.shape[1])
        chosen = np.stack([draw_classes(group, count, rng) for group in seen])
        found = self._datasets[0].class_captions(caption_rows(chosen.ravel(), rng))
        arrays = (found.hidden, found.piece_mask, found.word_pieces)
        return NamedClasses(
            tuple(as_tensor(array) for array in arrays),
            torch.from_numpy(np.take_along_axis(seen, chosen[:, None], 2)),
        )


def _swapped_captions(
    swaps: list[tuple[np.ndarray, np.ndarray, CaptionFeatures]],
) -> SwappedCaptions:
    """From rows, changed words and features of each data set."""
    total, parts = 0, []
    for rows, _, found in swaps:
        arrays = (found.hidden, found.piece_mask, found.word_pieces)
        parts.append((np.arange(total, total + len(rows)), arrays))
        total += len(rows)
    return SwappedCaptions(
        torch.from_numpy(np.concatenate([rows for rows, _, _ in swaps])),
        tuple(as_tensor(array) for array in _joined(total, parts)),
        torch.from_numpy(np.concatenate([changed for _, changed, _ in swaps])).long(),
    )


def _joined(
    size: int, parts: list[tuple[np.ndarray, tuple[np.ndarray, ...]]]
) -> Iterator[np.ndarray]:
    """Arrays of several data sets in one, padded with zeros to the largest of each axis."""
    for arrays in zip(*(arrays for _, arrays in parts), strict=True):
        shape = np.max([array.shape[1:] for array in arrays], axis=0)
        joined = np.zeros((size, *shape), arrays[0].dtype)
        for (rows, _), array in zip(parts, arrays, strict=True):
            joined[(rows, *(slice(n) for n in array.shape[1:]))] = array
        yield joined


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


def drop_regions(
    regions: Tensor, mask: Tensor | None, share: float
) -> tuple[Tensor, Tensor | None]:
    """Size augmentation: drops `share` of the regions on average, as many in each photo."""
    batch, count, channels = regions.shape
    kept = max(1, round(count * (1 - share * torch.rand(()).item() * 2)))
    luck = torch.rand(batch, count)
    if mask is not None:  # those that are there come first: a photo never loses its last one
        luck = luck.masked_fill(~mask, 2)
    index = luck.argsort(1)[:, :kept]
    chosen = regions.gather(1, index[..., None].expand(-1, -1, channels))
    return chosen, None if mask is None else mask.gather(1, index)
