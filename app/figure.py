"""A figure of one pair as a PNG: region gates, the whole-caption map, one map and gate a word.

Parts that the scorer does not have are left out.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from app.explanation import Explanation, cell_map

# Dark violet to yellow, ever lighter: readable without colour vision. The page uses the same.
COLOURS = np.array(
    [(13, 8, 135), (126, 3, 168), (204, 71, 120), (248, 149, 64), (240, 249, 33)],
    np.float32,
)
_TILE = 240
_TEXT = 34
_MARGIN = 12
_COLUMNS = 4


def colourise(values: np.ndarray) -> np.ndarray:
    """Values 0 to 1 (H, W) -> (H, W, 3) uint8."""
    place = np.clip(values, 0, 1) * (len(COLOURS) - 1)
    lower = np.minimum(place.astype(int), len(COLOURS) - 2)
    share = (place - lower)[..., None]
    return (COLOURS[lower] * (1 - share) + COLOURS[lower + 1] * share).astype(np.uint8)


def overlay(photo: Image.Image, cells: np.ndarray, opacity: float = 0.6) -> Image.Image:
    """cells: (8, 8), 0 to 1."""
    heat = Image.fromarray(np.uint8(np.clip(cells, 0, 1) * 255)).resize(
        photo.size,
        Image.Resampling.BILINEAR,
    )
    colours = Image.fromarray(colourise(np.asarray(heat, np.float32) / 255))
    return Image.blend(photo, colours, opacity)


def dim(photo: Image.Image, cells: np.ndarray, opacity: float = 0.6) -> Image.Image:
    """Dark where cells (8, 8) are 0, the photo as it is where they are 1; as the page's gates."""
    closed = Image.fromarray(np.uint8(255 * opacity * (1 - np.clip(cells, 0, 1))))
    mask = closed.resize(photo.size, Image.Resampling.BILINEAR)
    dark = Image.new("RGB", photo.size, tuple(COLOURS[0].astype(int).tolist()))
    return Image.composite(dark, photo, mask)


def draw_explanation(photo: Image.Image, explanation: Explanation) -> Image.Image:
    """All maps of attention share one colour range, 0 to the largest attention of the pair."""
    photo = photo.copy()
    photo.thumbnail((_TILE, _TILE))
    attention = explanation.word_attention
    top = None if attention is None else max(float(attention.max()), 1e-6)
    tiles = [("photo", photo)]
    if explanation.region_gates is not None:
        gates = cell_map(explanation.region_gates)
        tiles.append(("region gates, dark is closed", dim(photo, gates)))
    if top is not None:
        whole = overlay(photo, cell_map(attention.max(0)) / top)
        tiles.append((f"whole caption, 0 to {top:.2f}", whole))
        maps = [overlay(photo, cell_map(weights) / top) for weights in attention]
        tiles += zip(_word_labels(explanation), maps, strict=True)
    rows = -(-len(tiles) // _COLUMNS)
    step = (_TILE + _MARGIN, photo.height + _TEXT)
    size = (_COLUMNS * step[0] + _MARGIN, rows * step[1] + 2 * _TEXT)
    figure = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(figure)
    font = ImageFont.load_default(15)
    title = f"{explanation.caption.text[:80]}   {100 * explanation.probability:.1f} %"
    draw.text((_MARGIN, 8), title, "black", font)
    for index, (label, tile) in enumerate(tiles):
        left = _MARGIN + index % _COLUMNS * step[0]
        upper = _TEXT + index // _COLUMNS * step[1]
        draw.text((left, upper), label, "black", font)
        figure.paste(tile, (left, upper + 22))
    if top is not None:
        label = f"attention of {explanation.attention_of}, 0 to {top:.2f}"
        _draw_colour_bar(figure, draw, font, label)
    return figure


def _word_labels(explanation: Explanation) -> list[str]:
    words = [word[:18] for word in explanation.caption.words]
    if explanation.word_gates is None:
        return words
    gates = explanation.word_gates
    return [f"{word}  gate {gate:.2f}" for word, gate in zip(words, gates, strict=True)]


def _draw_colour_bar(
    figure: Image.Image,
    draw: ImageDraw.ImageDraw,
    font: ImageFont.ImageFont,
    label: str,
) -> None:
    width, height = 240, 12
    upper = figure.height - height - 10
    bar = colourise(np.tile(np.linspace(0, 1, width), (height, 1)))
    figure.paste(Image.fromarray(bar), (_MARGIN, upper))
    draw.text((_MARGIN + width + 8, upper - 4), label, "black", font)
