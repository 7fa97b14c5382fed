"""python -m export.verify: an engine against torch on the trained weights; exit code 1 if apart.

Embeddings, scores, attention and gates are compared at several batch sizes and caption lengths.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from export.graphs import TrainedGraphs, add_checkpoint_flags, checkpoint_folders
from export.parity import TOLERANCE, measure_parity
from matching.command import run_command
from matching.engine import Engine, EngineError
from matching.engine_description import DEFAULT_ENGINE


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m export.verify", description=__doc__)
    add_checkpoint_flags(parser)
    parser.add_argument("--engine", type=Path, default=DEFAULT_ENGINE)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    engine = Engine(arguments.engine, "cpu")  # checks the files first
    folders = checkpoint_folders(arguments)
    graphs = TrainedGraphs.load(*folders)
    made_from = engine.description
    found = (made_from.stage1.sha256, made_from.scorer.sha256, made_from.backbone_sha256)
    if found != (graphs.stage1.sha256, graphs.scorer.sha256, graphs.backbone_sha256):
        raise EngineError(
            f"engine {arguments.engine} was not made from {' and '.join(map(str, folders))}: "
            "give its checkpoints, or make it again with python -m export.build_onnx",
        )
    parity = measure_parity(graphs, partial(engine.description.path, arguments.engine))
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
