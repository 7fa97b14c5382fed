"""What python -m matching.tune reads: maps of the lower image backbone and captions as text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from matching.batches import NamedClasses
from matching.class_names import caption_rows, class_captions, draw_classes
from matching.lower_maps import LowerMaps
from matching.models.text_backbone import backbone_folder
from matching.text import CaptionReader, caption_batch


@dataclass(frozen=True)
class TuningBatch:
    photos: Tensor  # (B,) places in the training set
    maps: Tensor  # (B, C, H, W)
    piece_ids: Tensor  # (B x k, L); the captions of a photo stand together
    word_pieces: Tensor  # (B x k, N, L)
    classes: NamedClasses | None


@cache
def _reader() -> CaptionReader:
    return CaptionReader(backbone_folder() / "tokenizer.json")


def caption_tensors(texts: list[str]) -> tuple[Tensor, Tensor]:
    batch = caption_batch([_reader().read(text) for text in texts])
    return torch.from_numpy(batch.piece_ids), torch.from_numpy(batch.word_pieces)


class TuningSet:
    """The train photos of one or more folders of maps as one list."""

    def __init__(self, folders: list[LowerMaps], classes_a_step: int = 0) -> None:
        if len({folder.backbone_sha256 for folder in folders}) > 1:
            raise ValueError(
                "the maps were made with different lower backbones: run python -m "
                "matching.lower_maps for each again",
            )
        self._folders = folders
        self._classes_a_step = classes_a_step
        self._mirrors = all(folder.has_mirrored for folder in folders)
        self._places = [
            (folder, int(photo))
            for folder in folders
            for photo in np.flatnonzero(folder.splits == "train")
        ]

    def __len__(self) -> int:
        return len(self._places)

    def batch(self, members: np.ndarray, captions_a_photo: int, seed: list[int]) -> TuningBatch:
        """members (B,); captions and mirror images are drawn by the seed."""
        rng = np.random.default_rng(seed)
        mirrored = rng.random(len(members)) < (0.5 if self._mirrors else 0)
        maps, texts = [], []
        for member, mirror in zip(members.tolist(), mirrored, strict=True):
            folder, photo = self._places[member]
            maps.append(folder.maps(np.array([photo]), np.array([mirror])))
            captions = folder.photos[photo].captions
            # A random order; a photo with too few captions starts over.
            order = rng.permutation(len(captions))
            texts += [captions[order[i % len(order)]] for i in range(captions_a_photo)]
        piece_ids, word_pieces = caption_tensors(texts)
        return TuningBatch(
            torch.from_numpy(members),
            torch.from_numpy(np.concatenate(maps)).float(),
            piece_ids,
            word_pieces,
            self._named_classes(members, rng) if self._classes_a_step else None,
        )

    def _named_classes(self, members: np.ndarray, rng: np.random.Generator) -> NamedClasses:
        places = (self._places[member] for member in members.tolist())
        seen = np.stack([folder.classes[photo] for folder, photo in places]).astype(np.float32)
        chosen = draw_classes(seen, self._classes_a_step, rng)
        names = class_captions()
        tensors = caption_tensors([names[row] for row in caption_rows(chosen, rng).tolist()])
        return NamedClasses(tensors, torch.from_numpy(seen[None, :, chosen]))
