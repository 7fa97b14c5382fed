"""python -m export.build_onnx: the three graphs from the checkpoints, to an engine folder."""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import onnx
import torch

from export.graphs import TrainedGraphs
from export.parity import measure_parity
from export.weights import pack_weights, save_sharded
from matching.command import run_command
from matching.contract import FORMAT_VERSION, GRAPHS, Axis, GraphSpec
from matching.files import sha256_of, write_json
from matching.image import NUM_REGIONS
from matching.models.text_backbone import backbone_folder

OPSET = 20
DEFAULT_CHECKPOINT = Path("checkpoints/default")
DEFAULT_ENGINE = Path("engines/default")


def export_graph(graphs: TrainedGraphs, graph: GraphSpec) -> onnx.ModelProto:
    """One graph with its weights packed."""
    axes = {}
    # Sizes of one are frozen by the exporter: the example has two photos and three captions.
    example = graphs.example(graph, photos=2, captions=3)
    shapes = tuple(
        {i: _dimension(axes, axis) for i, axis in enumerate(spec.axes) if isinstance(axis, Axis)}
        for spec in graph.inputs
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graphs.module(graph),
            example,
            input_names=[spec.name for spec in graph.inputs],
            output_names=[spec.name for spec in graph.outputs],
            dynamic_shapes=shapes,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    model = program.model_proto
    del model.graph.value_info[:]
    _remove_traces(model)
    pack_weights(model)
    return model


def _dimension(known: dict[str, torch.export.Dim], axis: Axis) -> torch.export.Dim:
    if axis.name not in known:
        known[axis.name] = torch.export.Dim(axis.name, min=1, max=4096)
    return known[axis.name]


def _remove_traces(model: onnx.ModelProto) -> None:
    """The exporter writes source paths and stack traces of this machine into the graph."""
    del model.metadata_props[:], model.graph.metadata_props[:]
    for part in (
        *model.graph.node,
        *model.graph.initializer,
        *model.graph.input,
        *model.graph.output,
    ):
        del part.metadata_props[:]
        part.doc_string = ""
    model.doc_string = model.graph.doc_string = ""


def build_engine(checkpoint: Path, engine: Path) -> dict:
    """Exports, verifies and puts the folder in place; returns its description."""
    graphs = TrainedGraphs.load(checkpoint)
    engine.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=engine.parent, prefix=f".{engine.name}.") as temporary:
        folder = Path(temporary) / engine.name
        folder.mkdir()
        files = [f for g in GRAPHS for f in save_sharded(export_graph(graphs, g), folder, g.name)]
        shutil.copyfile(backbone_folder() / "tokenizer.json", folder / "tokenizer.json")
        description = describe(graphs, folder, [*files, "tokenizer.json"])
        write_json(folder / "engine.json", description)
        description["parity"] = measure_parity(graphs, folder)
        write_json(folder / "engine.json", description)
        shutil.rmtree(engine, ignore_errors=True)
        folder.rename(engine)
    return description


def describe(graphs: TrainedGraphs, folder: Path, files: list[str]) -> dict:
    shas = [graphs.stage1.sha256, graphs.camp.sha256, graphs.camp.config["backbone_sha256"]]
    config = graphs.camp.config["model"]
    return {
        "format_version": FORMAT_VERSION,
        "name": "VSE-infinity + CAMP (fast)",
        # Names the weights: a gallery made with other weights is refused.
        "model_sha256": hashlib.sha256("".join(shas).encode()).hexdigest(),
        "stage1_sha256": shas[0],
        "camp_sha256": shas[1],
        "backbone_sha256": shas[2],
        "opset": OPSET,
        "precision": "fp32, weights stored as fp16 and int8 rows",
        "num_regions": NUM_REGIONS,
        "embedding_width": graphs.stage1.config["model"]["dimension"],
        "side_width": 3 * config["dimension"] + config["key_dimension"],
        "ranking": graphs.camp.config["ranking"],
        "files": {name: sha256_of(folder / name) for name in files},
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m export.build_onnx", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=DEFAULT_CHECKPOINT)
    parser.add_argument("--engine", type=Path, default=DEFAULT_ENGINE, help="folder to write")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    description = build_engine(arguments.checkpoint, arguments.engine)
    size = sum((arguments.engine / name).stat().st_size for name in description["files"])
    if arguments.json:
        print(json.dumps({"engine": str(arguments.engine), "size_bytes": size, **description}))
    else:
        worst = max(description["parity"].values())
        print(
            f"{arguments.engine}: {len(GRAPHS)} graphs, opset {OPSET}, {size / 1e6:.1f} MB, "
            f"largest difference from torch {worst:.1e}",
        )
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
