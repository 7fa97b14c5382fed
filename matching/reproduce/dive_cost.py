"""DivE, section 4: what it costs to score all pairs with VSE-infinity, DivE and SCAN.

Floating point operations are counted in the graphs of our own modules, at the papers' sizes. What
is per photo or per caption is made beforehand in all three.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor, nn

from matching.config import DiveConfig, ScanConfig
from matching.flops import count_flops
from matching.models.dive import Dive
from matching.models.scan import Scan
from matching.models.vse_infinity import VseInfinity
from matching.reproduce.experiment import Setting
from matching.reproduce.report import Report, cell

_DIMENSION, _SLOTS, _REGIONS, _WORDS = 1024, 4, 36, 13
_PHOTOS, _CAPTIONS = 64, 320  # five captions a photo; the ratio does not depend on their number
_REPEATS = 5
_OURS = "SCAN by Gram matrices"
_PAPER_FLOPS = {"VSE-infinity": 1, "DivE": 16, "SCAN": 1280}
_PAPER_MS = {"VSE-infinity": 159, "DivE": 168, "SCAN": 198_121}  # Flickr30K val, encoding included


class _Similarity(nn.Module):
    """The part of an embedder that is run for every pair."""

    def __init__(self, system: type[nn.Module] | nn.Module) -> None:
        super().__init__()
        self._similarity = system.similarity

    def forward(self, photos: Tensor, captions: Tensor) -> Tensor:
        return self._similarity(photos, captions)


class _Scores(nn.Module):
    def __init__(self, scorer: Scan, plainly: bool) -> None:
        super().__init__()
        self.scorer, self.plainly = scorer, plainly

    def forward(self, photos: Tensor, captions: Tensor, mask: Tensor) -> Tensor:
        if self.plainly:
            return self.scorer.score_plainly(photos, captions)
        return self.scorer(photos, captions, mask).logit


def run(setting: Setting) -> Report:
    cells = setting.work / "cells"
    cost = {
        name: cell(cells, _cell_name(name), lambda n=name: _measure(n))
        for name in (*_PAPER_FLOPS, _OURS)
    }
    base = cost["VSE-infinity"]
    flops = {n: c["flops"]["total"] / base["flops"]["total"] for n, c in cost.items()}
    latency = {n: c["seconds"] / base["seconds"] for n, c in cost.items()}
    rows = [
        [
            name,
            f"{c['flops']['total'] / (_PHOTOS * _CAPTIONS):,.0f}",
            f"{flops[name]:,.1f}",
            f"{_PAPER_FLOPS[name]:,}" if name in _PAPER_FLOPS else "-",
            f"{latency[name]:,.1f}",
            f"{_PAPER_MS[name] / _PAPER_MS['VSE-infinity']:,.1f}" if name in _PAPER_MS else "-",
        ]
        for name, c in cost.items()
    ]
    in_order = 1 < flops["DivE"] < flops["SCAN"]
    ours = " : ".join(f"{flops[n]:,.0f}" for n in _PAPER_FLOPS)
    return Report(
        "dive-cost",
        "DivE: cost of scoring beside VSE-infinity and SCAN",
        f"d = {_DIMENSION}, sets of {_SLOTS}, {_REGIONS} regions, {_WORDS} words; {_PHOTOS} photos "
        f"with {_CAPTIONS} captions. FLOPs of a pair, counted from the graphs (two a multiply-add, "
        "one an element of every other operation); latency on a CPU, medians in one process.",
        ["system", "FLOPs a pair", "ratio", "paper", "latency, ratio", "paper, ratio"],
        rows,
        f"The order {'holds' if in_order else 'does NOT hold'}: {ours} here, 1 : 16 : 1,280 in the "
        f"paper; DivE's ratio is {flops['DivE'] / 16:.2f} and SCAN's {flops['SCAN'] / 1280:.2f} "
        "times the paper's.",
        "python -m matching.reproduce dive-cost",
        [
            "SCAN as its authors compute it; its number depends on the words a caption has, "
            f"{_WORDS} here. Our module gives the same scores by Gram matrices, without ever "
            f"forming an attended vector: {flops[_OURS] / flops['SCAN']:.2f} times the operations.",
            "Ours was first counted by Gram matrices alone (491 times); the authors' way was added "
            "because that is what the paper counts.",
            "The paper's latency seems to include encoding, which all three share; ours is of the "
            "scoring alone.",
        ],
        figures=cost,
    )


def _cell_name(name: str) -> str:
    return f"dive-cost-{name.lower().replace(' ', '-')}"


def _measure(name: str) -> dict:
    torch.manual_seed(0)
    module, inputs = _module(name)
    with torch.inference_mode():
        module(*inputs)
        seconds = statistics.median(_seconds(module, inputs) for _ in range(_REPEATS))
    return {"flops": count_flops(module, inputs), "seconds": seconds}


def _seconds(module: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    began = time.perf_counter()
    module(*inputs)
    return time.perf_counter() - began


def _module(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if name in ("SCAN", _OURS):
        scan = Scan(ScanConfig(dimension=_DIMENSION)).eval()
        module = _Scores(scan, plainly=name == "SCAN")
        mask = torch.ones(_CAPTIONS, _WORDS, dtype=torch.bool)
        return module, (
            torch.randn(_PHOTOS, _REGIONS, _DIMENSION),
            torch.randn(_CAPTIONS, _WORDS, _DIMENSION),
            mask,
        )
    if name == "DivE":
        dive = Dive(DiveConfig(dimension=_DIMENSION, slots=_SLOTS)).eval()
        module, width = _Similarity(dive), _SLOTS * _DIMENSION
    else:
        module, width = _Similarity(VseInfinity), _DIMENSION
    return module, (torch.randn(_PHOTOS, width), torch.randn(_CAPTIONS, width))
