"""python -m export.verify: an engine against torch on the trained weights; exit code 1 if apart.

Embeddings, scores, attention and gates are compared at several batch sizes and caption lengths.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from export.build_onnx import DEFAULT_ENGINE
from export.graphs import TrainedGraphs, add_checkpoint_flags, checkpoint_folders
from export.parity import TOLERANCE, measure_parity
from matching.command import run_command
from matching.engine import Engine, EngineError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m export.verify", description=__doc__)
    add_checkpoint_flags(parser)
    parser.add_argument("--engine", type=Path, default=DEFAULT_ENGINE)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    engine = Engine(arguments.engine, "cpu")  # checks the files first
    folders = checkpoint_folders(arguments)
    graphs = TrainedGraphs.load(*folders)
    made_from = (engine.description.stage1.sha256, engine.description.scorer.sha256)
    if made_from != (graphs.stage1.sha256, graphs.scorer.sha256):
        raise EngineError(
            f"engine {arguments.engine} was not made from {' and '.join(map(str, folders))}: "
            "give its checkpoints, or make it again with python -m export.build_onnx",
        )
    parity = measure_parity(graphs, arguments.engine)
    agrees = max(parity.values()) <= TOLERANCE
    if arguments.json:
        print(json.dumps({"agrees": agrees, "tolerance": TOLERANCE, "differences": parity}))
    else:
        for name, difference in parity.items():
            print(f"{name:32} {difference:.1e}")
        print(f"{arguments.engine} {'agrees with' if agrees else 'DIFFERS from'} torch")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(run_command(main))
