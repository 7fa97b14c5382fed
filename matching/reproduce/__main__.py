"""python -m matching.reproduce NAME: a table or figure of a paper, run here.

Resumable: what is done is kept in --work. The table, its exact numbers and a plot go to --out; the
paper's numbers stand beside ours, and one line says whether its claim holds here.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from matching.allocation import keep_freed_memory
from matching.command import run_command
from matching.reproduce import (
    camp_runtime,
    camp_table3,
    dive_cost,
    dive_similarity,
    gates,
    mmca_tables,
    vse_table6,
)
from matching.reproduce.experiment import Setting
from matching.reproduce.report import Report

EXPERIMENTS: dict[str, Callable[[Setting], Report]] = {
    "vse-table6": vse_table6.run,
    "camp-table3": camp_table3.run,
    "camp-runtime": camp_runtime.run,
    "dive-cost": dive_cost.run,
    "dive-similarity": dive_similarity.run,
    "mmca-alpha": mmca_tables.run_alpha,
    "mmca-dim": mmca_tables.run_dimension,
    "gates": gates.run,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.reproduce", description=__doc__)
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument(
        "--features",
        type=Path,
        default=Path("cache/flickr8k"),
        help="a folder made by python -m matching.prepare (default cache/flickr8k)",
    )
    parser.add_argument("--work", type=Path, default=Path("runs/reproduce"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--stage1", type=Path, default=Path("checkpoints/default/vse_infinity"))
    parser.add_argument("--scorer", type=Path, default=Path("checkpoints/default/camp"))
    parser.add_argument("--epochs", type=int, help="of each training, instead of the table's own")
    parser.add_argument("--photos", type=int, help="of the test, likewise")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    names = ("features", "work", "stage1", "scorer", "epochs", "photos")
    setting = Setting(**{name: getattr(arguments, name) for name in names})
    report = EXPERIMENTS[arguments.name](setting)
    path = report.write(arguments.out)
    if arguments.json:
        print(json.dumps({"out": str(path), "verdict": report.verdict, **report.figures}))
    else:
        print(f"{report.markdown()}\n{path} written")
    return 0


if __name__ == "__main__":
    keep_freed_memory()
    sys.exit(run_command(main))
