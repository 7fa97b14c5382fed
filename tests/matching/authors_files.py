"""Files with the authors' names of weights, filled with random numbers, as small as wanted."""

import argparse
import sys
from collections import OrderedDict
from types import ModuleType

import torch

from matching.vocabulary import MASK, SPECIALS, Vocabulary


def weights_of(shapes, seed=0, scale=0.6):
    """name -> shape, to an OrderedDict of tensors; variances are positive, counts are whole."""
    generator = torch.Generator().manual_seed(seed)
    tensors = OrderedDict()
    for name, shape in shapes.items():
        tensor = torch.randn(shape, generator=generator) * scale
        if name.endswith("running_var"):
            tensor = tensor.abs() + 0.5
        tensors[name] = torch.tensor(7) if name.endswith("num_batches_tracked") else tensor
    return tensors


def gru_shapes(name, inputs, hidden, bidirectional=True):
    shapes = {}
    for suffix in ("", "_reverse") if bidirectional else ("",):
        shapes[f"{name}.weight_ih_l0{suffix}"] = (3 * hidden, inputs)
        shapes[f"{name}.weight_hh_l0{suffix}"] = (3 * hidden, hidden)
        shapes[f"{name}.bias_ih_l0{suffix}"] = (3 * hidden,)
        shapes[f"{name}.bias_hh_l0{suffix}"] = (3 * hidden,)
    return shapes


def linear_shapes(name, inputs, outputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm_shapes(name, width, batch=False):
    shapes = {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    if batch:
        shapes |= {f"{name}.running_mean": (width,), f"{name}.running_var": (width,)}
        shapes |= {f"{name}.num_batches_tracked": ()}
    return shapes


def part(weights, prefix):
    """The weights whose names begin with `prefix`, without it: for load_state_dict."""
    return {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}


def save_list(path, parts, options=None, prefix="", zipped=True):
    """The container of VSE++, SCAN, VSRN, VSE-infinity and CAMP."""
    model = [OrderedDict((prefix + n, w) for n, w in weights.items()) for weights in parts]
    opt = argparse.Namespace(**(options or {}))
    document = {"epoch": 15, "model": model, "best_rsum": 412.5, "opt": opt, "Eiters": 9}
    torch.save(document, path, _use_new_zipfile_serialization=zipped)
    return path


def save_vocabulary(path, size, mask=False):
    words = [*SPECIALS, *(f"w{i}" for i in range(size - 4 - mask)), *([MASK] if mask else [])]
    Vocabulary({word: number for number, word in enumerate(words)}).save(path)
    return path


def bidirectional_states(weights, prefix, inputs):
    """torch's own two-directional GRU on one unpadded sequence (N, W) -> averaged (N, D)."""
    hidden = weights[f"{prefix}weight_hh_l0"].shape[1]
    layer = torch.nn.GRU(inputs.shape[1], hidden, bidirectional=True)
    layer.load_state_dict(part(weights, prefix))
    states, last = layer(inputs)
    return (states[:, :hidden] + states[:, hidden:]) / 2, last.mean(0)


class EasyDict(dict):
    """As the package easydict has it: every entry is an attribute, too."""

    def __init__(self, entries):
        super().__init__(entries)
        self.__dict__.update(entries)


EasyDict.__module__, EasyDict.__qualname__ = "easydict", "EasyDict"


def provide_easydict(monkeypatch):
    """Makes pickle find the class by the name that the authors' files have."""
    module = ModuleType("easydict")
    module.EasyDict = EasyDict
    monkeypatch.setitem(sys.modules, "easydict", module)
