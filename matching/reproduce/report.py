"""What an experiment leaves behind: a table with the paper's numbers beside ours, and a verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matching.files import read_json, replacing, write_json


@dataclass(frozen=True)
class Plot:
    """Lines over one axis, for those who would rather look."""

    x: str
    y: str
    lines: dict[str, tuple[list[float], list[float]]]  # name: xs, ys
    log: bool = False


@dataclass(frozen=True)
class Report:
    name: str
    title: str
    setup: str  # what was run: data, sizes, steps
    columns: list[str]
    rows: list[list[str]]
    verdict: str  # in one line: whether the paper's claim holds here
    command: str
    notes: list[str] = field(default_factory=list)
    plot: Plot | None = None
    figures: dict[str, Any] = field(default_factory=dict)  # the exact numbers

    def markdown(self) -> str:
        lines = [f"# {self.title}", "", self.setup, "", "```", self.command, "```", ""]
        lines += [_row(self.columns), _row(["---"] * len(self.columns))]
        lines += [_row(row) for row in self.rows]
        lines += ["", f"**{self.verdict}**"]
        if self.plot is not None:
            lines += ["", f"![{self.title}]({self.name}.svg)"]
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> Path:
        """NAME.md, NAME.json and, with a plot, NAME.svg."""
        path = folder / f"{self.name}.md"
        write_json(folder / f"{self.name}.json", {"verdict": self.verdict, **self.figures})
        if self.plot is not None:
            with replacing(folder / f"{self.name}.svg") as temporary:
                _draw(self.plot, temporary)
        with replacing(path) as temporary:
            temporary.write_text(self.markdown(), "utf-8")
        return path


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _draw(plot: Plot, path: Path) -> None:
    import matplotlib  # takes a second to import: only where something is drawn

    matplotlib.use("svg")
    # The same numbers give the same file: no date, no random ids.
    matplotlib.rcParams["svg.hashsalt"] = "camplens"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
    for name, (xs, ys) in plot.lines.items():
        axes.plot(xs, ys, marker="o", label=name)
    if plot.log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def cell(folder: Path, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """One number of a table: computed once, then read from disk, so a killed run goes on."""
    path = folder / f"{name}.json"
    if not path.exists():
        write_json(path, compute())
    return read_json(path)


def recall_cells(retrieval: dict[str, Any]) -> list[str]:
    """`i2t` and `t2i` as R@1 / R@5 / R@10, and the sum of all six."""
    ways = [
        " / ".join(f"{retrieval[way][k]:.1f}" for k in ("r1", "r5", "r10"))
        for way in ("i2t", "t2i")
    ]
    return [*ways, f"{retrieval['rsum']:.1f}"]


def sampling_error(retrieval: dict[str, Any], photos: int) -> float:
    """Standard error of rsum with five captions a photo: what other test photos would change."""
    sizes = {"i2t": photos, "t2i": 5 * photos}
    shares = [(retrieval[w][k] / 100, n) for w, n in sizes.items() for k in ("r1", "r5", "r10")]
    return 100 * math.sqrt(sum(p * (1 - p) / n for p, n in shares))


def paper_cells(numbers: str) -> list[str]:
    """The same of six numbers as a paper prints them, "68.1 89.7 95.2 | 51.5 77.1 85.3"."""
    ways = [[float(n) for n in way.split()] for way in numbers.split("|")]
    cells = [" / ".join(f"{n:.1f}" for n in way) for way in ways]
    return [*cells, f"{sum(map(sum, ways)):.1f}"]


def dumps(document: Any) -> str:
    return json.dumps(document, sort_keys=True)
