"""A figure of one pair as a PNG: region gates, the whole-caption map, one map and gate a word."""

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


def draw_explanation(photo: Image.Image, explanation: Explanation) -> Image.Image:
    """All maps of attention share one colour range, 0 to the largest attention of the pair."""
    photo = photo.copy()
    photo.thumbnail((_TILE, _TILE))
    attention = explanation.word_attention
    top = float(attention.max())
    tiles = [
        ("photo", photo),
        ("region gates, 0 to 1", overlay(photo, cell_map(explanation.region_gates))),
        (f"whole caption, 0 to {top:.2f}", overlay(photo, cell_map(attention.max(0)) / top)),
    ]
    for word, weights, gate in zip(
        explanation.caption.words,
        attention,
        explanation.word_gates,
        strict=True,
    ):
        tiles.append((f"{word[:18]}  gate {gate:.2f}", overlay(photo, cell_map(weights) / top)))
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
    _draw_colour_bar(figure, draw, font, top)
    return figure


def _draw_colour_bar(
    figure: Image.Image,
    draw: ImageDraw.ImageDraw,
    font: ImageFont.ImageFont,
    top: float,
) -> None:
    width, height = 240, 12
    upper = figure.height - height - 10
    bar = colourise(np.tile(np.linspace(0, 1, width), (height, 1)))
    figure.paste(Image.fromarray(bar), (_MARGIN, upper))
    draw.text((_MARGIN + width + 8, upper - 4), f"attention 0 to {top:.2f}", "black", font)
