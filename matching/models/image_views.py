"""A photo read several times, mirrored or enlarged, and the regions of all readings averaged.

What one reading sees by chance the others do not: the mean is a better feature, for as many times
the work. Only photos cost more; captions and pairs are as before.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from matching.image import GRID, IMAGE_SIZE, region_windows
from matching.models.image_backbone import ImageBackbone

_STRIDE = 32


@dataclass(frozen=True)
class View:
    size: int = IMAGE_SIZE  # the side that the square of pixels is enlarged to
    mirrored: bool = False

    @staticmethod
    def parse(text: str) -> View:
        """`256`, `384`, `256m` (mirrored)."""
        size = text.removesuffix("m")
        if not size.isdigit() or int(size) % _STRIDE or int(size) < IMAGE_SIZE:
            raise ValueError(
                f"view {text!r}: give a size of at least {IMAGE_SIZE} that is a multiple of "
                f"{_STRIDE}, with an m behind it for the mirrored photo, as in 256m",
            )
        return View(int(size), text.endswith("m"))

    def __str__(self) -> str:
        return f"{self.size}{'m' if self.mirrored else ''}"


ONE_VIEW = (View(),)


class ImageViews(nn.Module):
    """Photos (B, 3, 256, 256), 0 to 255, to region features (B, R, REGION_FEATURES)."""

    def __init__(self, backbone: ImageBackbone, views: tuple[View, ...]) -> None:
        super().__init__()
        self.backbone, self.views = backbone, views
        for size in {view.size for view in views}:
            windows = torch.from_numpy(region_windows(size // _STRIDE))
            self.register_buffer(f"windows_{size}", windows, persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        regions = [self._read(pixels, view) for view in self.views]
        return torch.stack(regions).mean(0)

    def _read(self, pixels: Tensor, view: View) -> Tensor:
        if view.size != IMAGE_SIZE:
            size = (view.size, view.size)
            pixels = nn.functional.interpolate(pixels, size, mode="bilinear", align_corners=False)
        if view.mirrored:
            pixels = pixels.flip(-1)
        maps = self.backbone.lower(pixels)
        regions = self.backbone.upper(maps, getattr(self, f"windows_{view.size}"))
        if view.mirrored:  # each region back to its place
            regions = regions.unflatten(1, (GRID, GRID)).flip(2).flatten(1, 2)
        return regions
