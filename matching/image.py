"""From a photo file to the pixels that the image encoder takes, and the boxes of its regions.

Torch-free: training and the app call the same functions.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

# The side of the square that every photo is squeezed to. The public COCO-256 photos were squeezed
# the same way, so a square keeps what the model saw in training.
IMAGE_SIZE = 256
GRID = 6  # regions lie on a GRID x GRID lattice of overlapping windows
NUM_REGIONS = GRID * GRID
_CELLS = 8  # cells a side of the stride-32 map at IMAGE_SIZE

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
# A small file can expand to gigabytes: the size is checked before anything is decoded.
MAX_PIXELS = 100_000_000


class PhotoError(ValueError):
    """A file that cannot be used as a photo; the message is meant for the person who gave it."""


def open_photo(source: Path | bytes, name: str | None = None) -> Image.Image:
    """Opens a photo upright and in RGB.

    Args:
        source: a file or its bytes.
        name: what to call it in an error message; the file's name by default.
    """
    if name is None:
        name = source.name if isinstance(source, Path) else "the photo"
    try:
        stream = io.BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(stream, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise PhotoError(
                    f"{name} has {image.width} x {image.height} pixels; at most "
                    f"{MAX_PIXELS // 1_000_000} million are taken: make it smaller",
                )
            image.draft("RGB", (2 * IMAGE_SIZE, 2 * IMAGE_SIZE))  # JPEG: decode no more than needed
            image.load()
            return ImageOps.exif_transpose(image).convert("RGB")
    except PhotoError:
        raise
    except FileNotFoundError:
        raise PhotoError(f"{name} does not exist: give the path of a photo") from None
    except IsADirectoryError:
        raise PhotoError(f"{name} is a folder: give the path of one photo") from None
    except UnidentifiedImageError:
        raise PhotoError(
            f"{name} is not a photo that can be read: give a JPEG, PNG, WebP, BMP, GIF or TIFF",
        ) from None
    except Image.DecompressionBombError:
        raise PhotoError(
            f"{name} has far too many pixels; at most {MAX_PIXELS // 1_000_000} million are taken: "
            "make it smaller",
        ) from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise PhotoError(
            f"{name} is damaged and cannot be decoded ({error}): save or copy it again",
        ) from None


def photo_pixels(photo: Image.Image) -> np.ndarray:
    """The photo squeezed to a square: (IMAGE_SIZE, IMAGE_SIZE, 3) uint8."""
    resized = photo.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.asarray(resized)


def pixel_batch(photos: list[np.ndarray]) -> np.ndarray:
    """Stacks pixels for the image encoder: (B, 3, IMAGE_SIZE, IMAGE_SIZE) float32, 0 to 255."""
    return np.stack(photos).transpose(0, 3, 1, 2).astype(np.float32)


def _window(index: int, cells: int = _CELLS) -> tuple[int, int]:
    # The windows of adaptive average pooling from `cells` to GRID: neighbours share a cell.
    return index * cells // GRID, -(-(index + 1) * cells // GRID)


def region_windows(cells: int = _CELLS) -> np.ndarray:
    """The share of each map cell in each region: (R, cells x cells) float32, rows sum to 1."""
    shares = np.zeros((NUM_REGIONS, cells, cells), np.float32)
    for row in range(GRID):
        for column in range(GRID):
            (top, bottom), (left, right) = _window(row, cells), _window(column, cells)
            area = (bottom - top) * (right - left)
            shares[row * GRID + column, top:bottom, left:right] = 1 / area
    return shares.reshape(NUM_REGIONS, -1)


def region_boxes() -> np.ndarray:
    """The box of each region as fractions of the photo: (R, 4), left, top, right, bottom."""
    boxes = [
        (
            *(edge[0] / _CELLS for edge in (_window(c), _window(r))),
            *(edge[1] / _CELLS for edge in (_window(c), _window(r))),
        )
        for r in range(GRID)
        for c in range(GRID)
    ]
    return np.array(boxes, np.float32)
