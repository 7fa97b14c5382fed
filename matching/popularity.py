"""How near a photo lies to captions of all kinds, and a caption to photos of all kinds. Torch-free.

Some photos are near to every caption, whatever it says, and crowd out the right ones. So from the
similarity of a pair the final score takes away a share of how popular its photo and its caption
are (Bogolin et al., "Cross Modal Retrieval with Querybank Normalisation", CVPR 2022):

    popularity of a photo = log mean_c exp(s cos(photo, c)) / s, c over a bank of training captions

and that of a caption likewise, over a bank of training photos. A soft maximum of its similarities.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from matching.files import replacing

POPULARITY_FILE = "popularity.npz"  # beside the weights of a stage 1, and in an engine
# Chosen on `val` (docs/results.md).
SHARPNESS = 30.0  # s
SHARE = 0.7
_REMEDY = "delete it and make it again with python -m matching.popularity_bank, or copy it again"
_FEW_ROWS = 4
_ROWS_A_CHUNK = 1024  # 16 MB of cosines with a bank of 4,000 at a time


@dataclass(frozen=True)
class Popularity:
    """The banks: embeddings of unit length, so only for a stage 1 that compares by cosine.

    Without banks nothing is popular.
    """

    captions: np.ndarray  # (K, E)
    photos: np.ndarray  # (K, E)
    stage1_sha256: str = ""  # of the weights that embedded them

    @staticmethod
    def none() -> Popularity:
        return Popularity(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32))

    def __bool__(self) -> bool:
        return len(self.captions) > 0

    def of_photos(self, embeddings: np.ndarray) -> np.ndarray:
        """What the final score takes away for each photo: (P, E) -> (P,) float32."""
        return _soft_maximum(embeddings, self.captions)

    def of_captions(self, embeddings: np.ndarray) -> np.ndarray:
        """What the final score takes away for each caption: (C, E) -> (C,) float32."""
        return _soft_maximum(embeddings, self.photos)

    def write(self, path: Path) -> None:
        banks = {"captions": self.captions, "photos": self.photos}
        halves = {name: bank.astype(np.float16) for name, bank in banks.items()}
        with replacing(path) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, stage1_sha256=np.array(self.stage1_sha256), **halves)

    @staticmethod
    def read(path: Path) -> Popularity:
        try:
            with np.load(path) as arrays:
                banks = (arrays[name].astype(np.float32) for name in ("captions", "photos"))
                return Popularity(*banks, str(arrays["stage1_sha256"]))
        except (zipfile.BadZipFile, ValueError, KeyError, EOFError) as error:
            raise ValueError(f"{path} cannot be read ({error}): {_REMEDY}") from None

    @staticmethod
    def beside(weights: Path, stage1_sha256: str) -> Popularity:
        """Of a stage 1 whose weights lie in that folder."""
        path = weights / POPULARITY_FILE
        if not path.exists():
            return Popularity.none()
        found = Popularity.read(path)
        if found.stage1_sha256 != stage1_sha256:
            raise ValueError(
                f"{path} was made with the stage 1 {found.stage1_sha256[:12]}, the weights beside "
                f"it are {stage1_sha256[:12]}: {_REMEDY}",
            )
        return found


def _soft_maximum(embeddings: np.ndarray, bank: np.ndarray) -> np.ndarray:
    if not len(bank):
        return np.zeros(len(embeddings), np.float32)
    if embeddings.ndim != 2 or embeddings.shape[1] != bank.shape[1]:
        raise ValueError(
            f"embeddings must have shape (n, {bank.shape[1]}), as the bank of popularity has, "
            f"found {embeddings.shape}: were they made with the same model?",
        )
    found = np.empty(len(embeddings), np.float32)
    for start in range(0, len(embeddings), _ROWS_A_CHUNK):
        rows = slice(start, start + _ROWS_A_CHUNK)
        logits = SHARPNESS * _cosines(np.asarray(embeddings[rows], np.float32), bank)
        largest = logits.max(1)
        found[rows] = largest + np.log(np.exp(logits - largest[:, None]).mean(1))
    return SHARE * found / SHARPNESS


def _cosines(embeddings: np.ndarray, bank: np.ndarray) -> np.ndarray:
    """(n, E), (K, E) -> (n, K)."""
    if len(embeddings) > _FEW_ROWS:
        return embeddings @ bank.T
    # For one query a matrix product would wake BLAS's threads, which then spin and take the cores
    # from ONNX Runtime: a search would take twice as long.
    return np.einsum("ne,ke->nk", embeddings, bank)
