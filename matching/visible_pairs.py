"""Scores of a pair with some of its regions or words hidden, in two ways.

`sets`: a hidden region or word is taken out of the set that CAMP passes messages over. Nothing else
changes: what is measured is the scorer alone.
`inputs`: the pixels of hidden regions become grey, hidden words are cut from the caption, and both
are encoded anew: what is measured is what a person can do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from matching.image import IMAGE_SIZE, photo_pixels, pixel_batch, region_boxes
from matching.models.backbones import Backbones
from matching.models.scores import PairScores
from matching.text import Caption, CaptionReader, caption_batch

GREY = 127  # the backbone's zero
_AT_ONCE = 16


@dataclass(frozen=True)
class Pair:
    pixels: np.ndarray  # (IMAGE_SIZE, IMAGE_SIZE, 3)
    caption: Caption


class TorchPairs:
    """A scorer behind its backbones, in torch, because engines have no masks of regions."""

    def __init__(self, backbones: Backbones, scorer: nn.Module, reader: CaptionReader) -> None:
        self._photos, self._text = backbones.photos, backbones.text
        self._scorer, self._reader = scorer, reader

    def pair(self, photo: Image.Image, text: str) -> Pair:
        return Pair(photo_pixels(photo), self._reader.read(text))

    @torch.inference_mode()
    def explain(self, pair: Pair) -> PairScores:
        """All parts, of this one pair: no leading axes."""
        scores = self._scorer(*self._sides(pair))
        return PairScores(*(None if part is None else part[0, 0] for part in scores))

    @torch.inference_mode()
    def _sides(self, pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
        return (self._photo_sides([pair.pixels]), *self._caption_sides([pair.caption]))

    def _photo_sides(self, pixels: list[np.ndarray]) -> Tensor:
        runs = [
            self._scorer.photo_side(
                self._photos(torch.from_numpy(pixel_batch(pixels[i : i + _AT_ONCE])))
            )
            for i in range(0, len(pixels), _AT_ONCE)
        ]
        return torch.cat(runs)

    def _caption_sides(self, captions: list[Caption]) -> tuple[Tensor, Tensor]:
        batch = caption_batch(captions)
        ids = torch.from_numpy(batch.piece_ids)
        pieces = torch.from_numpy(batch.word_pieces)
        return self._scorer.caption_side(self._text(ids), ids != 0, pieces)

    @torch.inference_mode()
    def with_regions(self, pair: Pair, visible: np.ndarray, way: str) -> np.ndarray:
        """visible (K, R) -> probabilities of a match (K,)."""
        photo, caption, mask = self._sides(pair)
        if way == "inputs":
            photos = self._photo_sides([hide_pixels(pair.pixels, row) for row in visible])
            return _probabilities(self._scorer(photos, caption, mask).logit[:, 0])
        # A set must not be empty: with nothing left, the pair has no score. See `_none_left`.
        photos = photo[None].expand(len(visible), -1, -1, -1)  # groups of one photo
        captions, masks = (t[None].expand(len(visible), *t.shape) for t in (caption, mask))
        shown = torch.from_numpy(_none_left(visible))[:, None]
        logits = self._scorer(photos, captions, masks, shown).logit[:, 0, 0]
        return _probabilities(logits) * visible.any(1)

    @torch.inference_mode()
    def with_words(self, pair: Pair, visible: np.ndarray, way: str) -> np.ndarray:
        """visible (K, N) -> probabilities of a match (K,)."""
        photo, caption, mask = self._sides(pair)
        if way == "inputs":
            words = pair.caption.words
            texts = [" ".join(w for w, v in zip(words, row, strict=True) if v) for row in visible]
            read = [self._reader.read(text) if text else pair.caption for text in texts]
            scores = self._scorer(photo, *self._caption_sides(read)).logit[0]
        else:
            captions = caption.expand(len(visible), -1, -1)
            scores = self._scorer(photo, captions, torch.from_numpy(_none_left(visible))).logit[0]
        return _probabilities(scores) * visible.any(1)


def _none_left(visible: np.ndarray) -> np.ndarray:
    """Rows that show nothing show all instead: their score counts as 0, whatever comes out."""
    return visible | ~visible.any(1, keepdims=True)


def _probabilities(logits: Tensor) -> np.ndarray:
    return logits.sigmoid().numpy()


def hide_pixels(pixels: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Grey wherever a hidden region lies; visible (R,) bool."""
    hidden = pixels.copy()
    for left, top, right, bottom in (region_boxes()[~visible] * IMAGE_SIZE).round().astype(int):
        hidden[top:bottom, left:right] = GREY
    return hidden
