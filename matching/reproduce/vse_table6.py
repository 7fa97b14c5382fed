"""Table 6 of the supplement of VSE-infinity: which design of GPO learns a given pooling.

Random sets are pooled by known coefficients; GPO learns from inputs and pooled outputs alone. Its
coefficients are then compared with the known ones: the error is the RMSE over the ranks of a set,
averaged over the sizes of sets. Training sees sizes 20 to 100; 10 to 19 and 101 to 120 are unseen.
The supplement gives neither the optimiser nor the number of steps: ours are below. Of the
interpolation and the MLP several learning rates were tried and that of the smallest mean error on
seen sizes is taken; the BiGRUs have the first one tried.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from matching.config import VseInfinityConfig
from matching.files import read_json, write_json
from matching.models.gpo import GeneralizedPooling
from matching.models.pooling import make_pooling
from matching.reproduce.experiment import Setting
from matching.reproduce.report import Report

PATTERNS = ("A", "M-1", "M-10", "T-50%", "L")
# Input and decoder, in the order of the paper's rows: positions, generator, learning rate.
DESIGNS = {
    "index + interpolation": ("index", "interpolation", 0.03),
    "cos/sin + MLP": ("cos_sin", "mlp", 0.03),
    "index + BiGRU": ("index", "bigru", 0.01),
    "cos/sin + BiGRU": ("cos_sin", "bigru", 0.01),
}
SIZES = {"seen": (20, 100), "smaller": (10, 19), "larger": (101, 120)}
PAPER = {
    "index + interpolation": {
        "seen": (0.0, 0.065, 0.030, 0.011, 0.004),
        "smaller": (0.0, 0.017, 0.141, 0.039, 0.016),
        "larger": (0.0, 0.070, 0.014, 0.005, 0.002),
    },
    "cos/sin + MLP": {
        "seen": (0.012, 0.003, 0.047, 0.032, 0.022),
        "smaller": (0.054, 0.003, 0.093, 0.096, 0.065),
        "larger": (0.006, 0.003, 0.030, 0.026, 0.028),
    },
    "index + BiGRU": {
        "seen": (0.002, 0.002, 0.026, 0.011, 0.008),
        "smaller": (0.006, 0.004, 0.052, 0.049, 0.015),
        "larger": (0.003, 0.001, 0.018, 0.007, 0.005),
    },
    "cos/sin + BiGRU": {
        "seen": (0.0, 0.005, 0.010, 0.006, 0.0),
        "smaller": (0.002, 0.010, 0.031, 0.046, 0.005),
        "larger": (0.0, 0.004, 0.007, 0.004, 0.001),
    },
}
OURS = "cos/sin + BiGRU"  # the design of VSE-infinity
TOLERANCE = 0.005
_LARGEST = max(largest for _, largest in SIZES.values())
_SETS = 32  # of a step, each of a size of its own
_DIMENSIONS = 32  # each is a set of its own: the coefficients are shared
_LOG = logging.getLogger(__name__)


def true_coefficients(pattern: str, sizes: Tensor, length: int) -> Tensor:
    """sizes (B,) -> (B, length), 0 beyond the size; each row sums to one."""
    ranks, sizes = torch.arange(length), sizes[:, None]
    weights = {
        "A": torch.ones(len(sizes), length),
        "M-1": ranks < 1,
        "M-10": ranks < 10,
        "T-50%": 2 * ranks < sizes,
        "L": sizes - 1 - ranks,  # "linearly decreases to zero as k goes from 1 to N"
    }[pattern] * (ranks < sizes)
    return weights / weights.sum(1, keepdim=True)


def coefficient_error(
    pooling: GeneralizedPooling,
    pattern: str,
    smallest: int,
    largest: int,
) -> float:
    """RMSE over the ranks of a set, averaged over sizes."""
    sizes = torch.arange(smallest, largest + 1)
    with torch.no_grad():
        found = pooling.coefficients(sizes, largest).squeeze(-1)
    squares = (found - true_coefficients(pattern, sizes, largest)).square().sum(1)
    return (squares / sizes).sqrt().mean().item()


def train_cell(design: str, pattern: str, steps: int, seed: int) -> dict[str, Any]:
    """Trains one design on one pattern; returns its errors on all ranges of sizes."""
    torch.manual_seed(seed)
    positions, generator, learning_rate = DESIGNS[design]
    config = VseInfinityConfig(pooling_positions=positions, pooling_generator=generator)
    pooling = make_pooling("gpo", config, _LARGEST)
    optimiser = torch.optim.Adam(pooling.parameters(), learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser,
        learning_rate,
        total_steps=steps,
        pct_start=0.1,
    )
    smallest, largest = SIZES["seen"]
    for _ in range(steps):
        sizes = torch.randint(smallest, largest + 1, (_SETS,))
        features = torch.randn(_SETS, largest, _DIMENSIONS)
        mask = torch.arange(largest) < sizes[:, None]
        ranked = features.masked_fill(~mask[..., None], -1e4).sort(1, descending=True).values
        truth = (ranked * true_coefficients(pattern, sizes, largest)[..., None]).sum(1)
        loss = (_pooled(pooling, sizes, ranked) - truth).square().mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(pooling.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    errors = {name: coefficient_error(pooling, pattern, *SIZES[name]) for name in SIZES}
    return {"design": design, "pattern": pattern, "steps": steps, "seed": seed, "rmse": errors}


def run(setting: Setting) -> Report:
    result = table(setting.work)
    numbers = {(row["design"], row["sizes"]): row for row in result["paper"]}
    rows = []
    for row in result["rows"]:
        paper = numbers[row["design"], row["sizes"]]
        cells = [f"{row[name]:.3f} ({paper[name]:.3f})" for name in (*PATTERNS, "mean")]
        rows.append([row["design"], row["sizes"], *cells])
    return Report(
        "vse-table6",
        "VSE-infinity, table 6 of the supplement: which design of GPO learns a given pooling",
        "RMSE of the coefficients, ours (the paper's). Training sees sets of 20 to 100, smaller "
        "are 10 to 19, larger 101 to 120. A: average; M-1, M-10: mean of the largest one and ten; "
        "T-50%: mean of the upper half; L: linear.",
        result["columns"],
        rows,
        result["verdict"],
        "python -m matching.reproduce vse-table6",
        [
            "One seed. The supplement gives neither optimiser nor steps nor how the error is "
            "averaged; here it is the mean over the sizes of the RMSE of a size.",
            "Learning rates of the interpolation and of the MLP were picked on the errors shown "
            "here (four and three were tried); both BiGRUs have the first that was tried. The 800 "
            "steps were fixed after cos/sin + BiGRU was seen at 500 and, on one pattern, 1,200.",
            "A first run was stopped after 9 of 20 cells: the interpolation was under-trained, and "
            "L did not yet reach zero at the end of a set, as the supplement's text says.",
            "That the MLP has no softmax and that the interpolation is divided by its sum was "
            "inferred, partly from the paper's own errors. With a softmax the MLP may do better.",
        ],
        figures={"ours": result["rows"], "paper": result["paper"]},
    )


def table(out: Path, steps: int = 800, seed: int = 1) -> dict[str, Any]:
    """Trains the cells that are not yet in out/vse-table6/cells; returns the table."""
    cells = {}
    for design in DESIGNS:
        for pattern in PATTERNS:
            path = out / "vse-table6" / "cells" / f"{_file_name(design)}_{_file_name(pattern)}.json"
            cell = read_json(path) if path.exists() else None
            if cell is None or (cell["steps"], cell["seed"]) != (steps, seed):
                cell = train_cell(design, pattern, steps, seed)
                write_json(path, cell)
            cells[design, pattern] = cell["rmse"]
            _LOG.info("%s, %s: %s", design, pattern, cell["rmse"])
    rows = [
        {"design": design, "sizes": sizes}
        | {pattern: round(cells[design, pattern][sizes], 4) for pattern in PATTERNS}
        | {"mean": round(_mean([cells[design, pattern][sizes] for pattern in PATTERNS]), 4)}
        for sizes in SIZES
        for design in DESIGNS
    ]
    return {
        "title": "RMSE of pooling coefficients that GPO has learned (VSE-infinity, supp. table 6)",
        "columns": ["design", "sizes", *PATTERNS, "mean"],
        "rows": rows,
        "paper": [
            {"design": design, "sizes": sizes}
            | dict(zip(PATTERNS, PAPER[design][sizes], strict=True))
            | {"mean": round(_mean(PAPER[design][sizes]), 4)}
            for sizes in SIZES
            for design in DESIGNS
        ],
        "verdict": verdict(rows),
    }


def verdict(rows: list[dict[str, Any]]) -> str:
    """Whether cos/sin + BiGRU is as good as in the paper, and best or second on average."""
    seen = {row["design"]: row for row in rows if row["sizes"] == "seen"}
    paper = dict(zip(PATTERNS, PAPER[OURS]["seen"], strict=True))
    near = [p for p in PATTERNS if seen[OURS][p] <= paper[p] + TOLERANCE]
    place = sorted(seen, key=lambda design: seen[design]["mean"]).index(OURS) + 1
    holds = len(near) >= 4 and place <= 2
    return (
        f"The claim {'holds' if holds else 'does not hold'} here: {OURS} is within {TOLERANCE} of "
        f"the paper's RMSE or below it on {len(near)} of {len(PATTERNS)} seen patterns, and number "
        f"{place} of {len(seen)} designs on average."
    )


def _pooled(pooling: GeneralizedPooling, sizes: Tensor, ranked: Tensor) -> Tensor:
    """GPO of features that are sorted already: (B, S, D) -> (B, D)."""
    return (ranked * pooling.coefficients(sizes, ranked.shape[1])).sum(1)


def _mean(values: list[float] | tuple[float, ...]) -> float:
    return sum(values) / len(values)


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower())
