"""A data set as training and evaluation see it: photos with regions and captions, by split."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from matching.captions import CaptionedPhoto
from matching.features import Features
from matching.precomp import PrecompDataset


class Dataset(Protocol):
    """Our features (matching.features) or the field's (matching.precomp)."""

    folder: Path
    backbone_sha256: str  # names what made the regions: data sets of different ones never mix
    photos: list[CaptionedPhoto]
    caption_starts: np.ndarray  # by photo, one more

    @property
    def num_captions(self) -> int: ...
    @property
    def region_shape(self) -> tuple[int, ...]: ...
    def photos_of(self, split: str) -> np.ndarray: ...
    def captions_of(self, photo: int) -> np.ndarray: ...
    def regions(self, photos: np.ndarray) -> np.ndarray: ...
    def region_mask(self, photos: np.ndarray) -> np.ndarray | None: ...


def open_dataset(folder: Path) -> Dataset:
    """Opens a folder of features, ours or in the field's `precomp` layout."""
    if (folder / "dataset.json").exists():
        return Features(folder)
    if any(folder.glob("*_ims.npy")):
        return PrecompDataset(folder)
    raise FileNotFoundError(
        f"{folder} holds no features: dataset.json (python -m matching.prepare) or the field's "
        "train_ims.npy, train_caps.txt, ... are expected there",
    )
