"""The classifier that the image backbone was published with: ImageNet's 1,000 classes.

The backbone knows many things that no training caption names. Its own classifier says what they
are: python -m matching.tune can hold a photo near the names of the classes that are seen in it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from matching.models.image_backbone import HEAD_CHANNELS, ImageBackbone, published_weights

NUM_CLASSES = 1000
_CELLS = 8  # a side of the map, at stride 32
_HALF = _CELLS // 2
# Top left corners of the parts that are half as wide and high: four quarters and the middle.
_CORNERS = ((0, 0), (0, _HALF), (_HALF, 0), (_HALF, _HALF), (_HALF // 2, _HALF // 2))


class PublishedClassifier(nn.Module):
    """Maps (B, 88, 16, 16) of the lower backbone to log-probabilities (B, NUM_CLASSES).

    The mean over the whole photo and five parts of it: the classifier was trained on photos of one
    thing, most photos here show several.
    """

    def __init__(self, backbone: ImageBackbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.classes = nn.Linear(HEAD_CHANNELS, NUM_CLASSES)
        weights = published_weights()
        with torch.no_grad():
            self.classes.weight.copy_(weights["_fc.weight"])
            self.classes.bias.copy_(weights["_fc.bias"])
        self.register_buffer("parts", _parts())

    def forward(self, maps: Tensor) -> Tensor:
        cells = self.backbone.cells(maps)[..., :HEAD_CHANNELS]
        of_parts = self.classes(self.parts @ cells).log_softmax(-1)  # (B, parts, classes)
        return of_parts.logsumexp(1) - of_parts.new_tensor(self.parts.shape[0]).log()


def _parts() -> Tensor:
    """The share of each cell in each part: (parts, cells)."""
    parts = torch.zeros(1 + len(_CORNERS), _CELLS, _CELLS)
    parts[0] = 1
    for part, (y, x) in zip(parts[1:], _CORNERS, strict=True):
        part[y : y + _HALF, x : x + _HALF] = 1
    parts = parts.flatten(1)
    return parts / parts.sum(1, keepdim=True)
