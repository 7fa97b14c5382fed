"""Rounding weights to what a checkpoint or an engine stores, before anything is computed with them.

Trained on, exported and tested are then the same numbers: storing them loses nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def round_to_half(module: nn.Module) -> None:
    """Rounds all parameters of a module to values that fp16 can hold, in place."""
    for parameter in module.parameters():
        parameter.copy_(parameter.half().float())


def round_rows_to_int8(table: Tensor) -> Tensor:
    """Rounds each row to 255 steps; the step is a value that fp16 can hold."""
    step = (table.abs().amax(1, keepdim=True) / 127).half().float()
    return (table / step).round().clamp(-127, 127) * step
