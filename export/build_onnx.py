"""python -m export.build_onnx: a stage 1 and a scorer as three graphs, to an engine folder."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import onnx
import torch

from export.graphs import TrainedGraphs, add_checkpoint_flags, checkpoint_folders
from export.parity import measure_parity
from export.weights import backbone_first, pack_weights, save_sharded
from matching.checkpoint import Checkpoint, ranking_of
from matching.command import run_command
from matching.config import CampConfig
from matching.contract import Axis, GraphSpec
from matching.engine_description import (
    DEFAULT_ENGINE,
    EngineDescription,
    ScorerDescription,
    Stage1Description,
)
from matching.files import sha256_of
from matching.image import NUM_REGIONS
from matching.models.text_backbone import backbone_folder
from matching.popularity import POPULARITY_FILE
from matching.similarity import Similarity

OPSET = 20
TITLES = {
    "vse_infinity": "VSE-infinity",
    "camp": "CAMP",
    "dive": "DivE",
    "mmca": "MMCA",
    "scan": "SCAN",
}


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
    backbone = getattr(graphs.module(graph), "backbone", None)  # the pair scorer has none
    backbone_first(model, [] if backbone is None else [p.numpy() for p in backbone.parameters()])
    pack_weights(model)
    return model


def _dimension(known: dict[str, torch.export.Dim], axis: Axis) -> torch.export.Dim:
    if axis.name not in known:
        # The exporter takes an axis for longer than its shortest, which may be one. The graphs run
        # at the shortest all the same: export.parity tries it.
        known[axis.name] = torch.export.Dim(axis.name, min=axis.least + 1, max=axis.most)
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


def build_engine(
    stage1: Path,
    scorer: Path,
    engine: Path,
    name: str | None = None,
    share_with: Path | None = None,
) -> EngineDescription:
    """Exports two checkpoints, verifies and puts the folder in place; returns its description.

    share_with: an engine beside it; graphs that are the same in both are not stored again.
    """
    graphs = TrainedGraphs.load(stage1, scorer)
    ranking_of(graphs.scorer, graphs.stage1)  # if it is not chosen yet: said before the work
    engine.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=engine.parent, prefix=f".{engine.name}.") as temporary:
        folder = Path(temporary) / engine.name
        folder.mkdir()
        files = [
            file
            for graph in graphs.specs
            for file in save_sharded(export_graph(graphs, graph), folder, graph.name)
        ]
        shutil.copyfile(backbone_folder() / "tokenizer.json", folder / "tokenizer.json")
        files.append("tokenizer.json")
        if graphs.stage1.popularity:
            graphs.stage1.popularity.write(folder / POPULARITY_FILE)
            files.append(POPULARITY_FILE)
        description = describe(graphs, folder, files, name)
        if share_with is not None:
            description = _shared(description, folder, share_with, engine)
        description.write(folder)
        shutil.rmtree(engine, ignore_errors=True)
        folder.rename(engine)
    return description


def _shared(
    description: EngineDescription,
    folder: Path,
    share_with: Path,
    engine: Path,
) -> EngineDescription:
    """Names the files that the other engine has as well in its folder, and drops our copies."""
    if share_with.resolve().parent != engine.resolve().parent or share_with.name == engine.name:
        raise ValueError(f"--share-with {share_with}: give another engine beside {engine}")
    theirs = EngineDescription.read(share_with).files
    files = {}
    for file, sha256 in description.files.items():
        # A graph and its weights stay together: weights are found beside the graph.
        stem = file.split(".")[0].split("-")[0]
        group = {f: s for f, s in description.files.items() if f.startswith(stem)}
        if all(theirs.get(f) == s for f, s in group.items()):
            files[f"../{share_with.name}/{file}"] = sha256
            (folder / file).unlink()
        else:
            files[file] = sha256
    return dataclasses.replace(description, files=files)


def describe(
    graphs: TrainedGraphs,
    folder: Path,
    files: list[str],
    name: str | None = None,
) -> EngineDescription:
    stage1, scorer = graphs.stage1, graphs.scorer
    settings = getattr(stage1.model, "similarity_settings", dict)()  # none: cosine
    return EngineDescription(
        name=name or _name(stage1, scorer),
        stage1=Stage1Description(
            stage1.system,
            TITLES[stage1.system],
            stage1.sha256,
            Similarity.from_json(settings).to_json(),
        ),
        scorer=ScorerDescription(
            scorer.system,
            TITLES[scorer.system],
            scorer.sha256,
            scorer.model.extra_positions,
            graphs.outputs,
        ),
        backbone_sha256=graphs.backbone_sha256,
        opset=OPSET,
        precision="fp32, weights stored as fp16 and int8 rows",
        num_regions=NUM_REGIONS,
        embedding_width=stage1.model.embedding_width,
        side_width=scorer.model.side_width,
        ranking=dataclasses.asdict(ranking_of(scorer, stage1)),
        files={file: sha256_of(folder / file) for file in files},
        parity=measure_parity(graphs, folder.joinpath),
    )


def _name(stage1: Checkpoint, scorer: Checkpoint) -> str:
    title = TITLES[scorer.system] + _form(scorer)
    return title if stage1 is scorer else f"{TITLES[stage1.system]} + {title}"


def _form(scorer: Checkpoint) -> str:
    """The form of a system that has several; an unnamed one of CAMP says nothing."""
    config = scorer.config["model"]
    if scorer.system == "scan":
        return f" ({config['direction']})"
    # Encoder settings and sizes are no part of the form.
    parts = ("messages", "gate", "fusion", "residual", "aggregation", "score", "normalise_features")
    fast = CampConfig()
    is_fast = scorer.system == "camp" and all(config[p] == getattr(fast, p) for p in parts)
    return " (fast)" if is_fast else ""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m export.build_onnx", description=__doc__)
    add_checkpoint_flags(parser)
    parser.add_argument("--engine", type=Path, default=DEFAULT_ENGINE, help="folder to write")
    parser.add_argument("--name", help="for people (default: after the systems)")
    parser.add_argument(
        "--share-with", type=Path, help="engine beside it: what is the same is not stored again"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    folders = checkpoint_folders(arguments)
    description = build_engine(*folders, arguments.engine, arguments.name, arguments.share_with)
    size = sum((arguments.engine / name).stat().st_size for name in description.files)
    if arguments.json:
        document = {"engine": str(arguments.engine), "size_bytes": size}
        print(json.dumps({**document, **dataclasses.asdict(description)}))
    else:
        worst = max(description.parity.values())
        print(
            f"{arguments.engine}: {description.name}, {len(description.graphs)} graphs, opset "
            f"{OPSET}, {size / 1e6:.1f} MB, largest difference from torch {worst:.1e}",
        )
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
