"""python -m export.build_trt: TensorRT plans of an engine's graphs.

With an NVIDIA GPU and TensorRT 11: plans for that GPU. Without a GPU: TensorRT-RTX plans for the
compute capabilities that are named. Precision is what the ONNX files say.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx

from export.weights import unpack_weights
from matching.command import run_command
from matching.contract import Axis, GraphSpec
from matching.engine import Engine
from matching.engine_description import DEFAULT_ENGINE
from matching.files import replacing, sha256_of, write_json

DEFAULT_CAPABILITIES = ("8.0", "8.6", "8.9", "12.0")


class PlanError(ValueError):
    """A plan that cannot be built here; the message says why and what to do."""


def gpu_present() -> bool:
    """Asks the driver itself: objects of TensorRT crash or raise TypeError where there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 < count.value


def choose_builder(capabilities: list[str] | None) -> tuple[ModuleType, bool]:
    """TensorRT for the GPU of this machine, or TensorRT-RTX for named ones: (package, is RTX)."""
    if gpu_present() and not capabilities:
        package = _import("tensorrt")
        if package is not None:
            return package, False
    package = _import("tensorrt_rtx")
    if package is not None:
        return package, True
    raise PlanError(
        "no plan can be built here: there is no NVIDIA GPU with TensorRT, and TensorRT-RTX is not "
        "installed: pip install tensorrt-rtx builds without a GPU, requirements-gpu.txt is for one",
    )


def _import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def expanded_graph(path: Path) -> bytes:
    """The ONNX graph with float32 weights inside."""
    model = onnx.load(path)
    unpack_weights(model)
    return model.SerializeToString()


def build_plan(
    trt: ModuleType,
    rtx: bool,
    path: Path,
    graph: GraphSpec,
    widths: dict[str, int],
    capabilities: list[str],
) -> bytes:
    """Parses one graph and builds its plan."""
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(expanded_graph(path)):
        reasons = "; ".join(str(parser.get_error(i)) for i in range(parser.num_errors))
        raise PlanError(f"TensorRT cannot read {graph.name}.onnx: {reasons[:500]}")
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    for spec in graph.inputs:
        shapes = [
            tuple(_length(axis, which, widths) for axis in spec.axes)
            for which in ("least", "usual", "most")
        ]
        profile.set_shape(spec.name, *shapes)
    config.add_optimization_profile(profile)
    if rtx:
        config.num_compute_capabilities = len(capabilities)
        for index, capability in enumerate(capabilities):
            config.set_compute_capability(_capability(trt, capability), index)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise PlanError(f"TensorRT built no plan of {graph.name} for {', '.join(capabilities)}")
    return bytes(plan)


def _length(axis: Axis | int | str, which: str, widths: dict[str, int]) -> int:
    if isinstance(axis, Axis):
        return getattr(axis, which)
    return widths[axis] if isinstance(axis, str) else axis


def _capability(trt: ModuleType, capability: str) -> Any:
    name = "SM" + capability.replace(".", "")
    if not hasattr(trt.ComputeCapability, name):
        known = [n for n in dir(trt.ComputeCapability) if n.startswith("SM")]
        raise PlanError(f"compute capability {capability} is not known; TensorRT-RTX has {known}")
    return getattr(trt.ComputeCapability, name)


def build_plans(engine: Path, out: Path, capabilities: list[str] | None) -> dict[str, Any]:
    """Writes one plan a graph and plans.json, which says what they were made from and for."""
    trt, rtx = choose_builder(capabilities)
    opened = Engine(engine, "cpu")  # checks the files
    widths = {"embedding_width": opened.embedding_width, "side_width": opened.side_width}
    targets = (capabilities or list(DEFAULT_CAPABILITIES)) if rtx else ["this machine's GPU"]
    plans = {}
    for graph in opened.description.graphs:
        onnx_path = opened.description.path(engine, f"{graph.name}.onnx")
        plan = build_plan(trt, rtx, onnx_path, graph, widths, targets)
        path = out / f"{graph.name}.plan"
        with replacing(path) as temporary:
            temporary.write_bytes(plan)
        plans[path.name] = {
            "sha256": sha256_of(path),
            "onnx_sha256": sha256_of(onnx_path),
            "size_bytes": len(plan),
        }
        print(f"{path}: {len(plan) / 1e6:.1f} MB", file=sys.stderr)
    description = {
        "builder": "TensorRT-RTX" if rtx else "TensorRT",
        "version": trt.__version__,
        "compute_capabilities": targets,
        "precision": "fp32",
        "model_sha256": opened.sha256,
        "profiles": {
            a.name: [a.least, a.usual, a.most]
            for g in opened.description.graphs
            for s in g.inputs
            for a in s.axes
            if isinstance(a, Axis)
        },
        "plans": plans,
    }
    write_json(out / "plans.json", description)
    return description


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m export.build_trt", description=__doc__)
    parser.add_argument("--engine", type=Path, default=DEFAULT_ENGINE, help="engine folder to read")
    parser.add_argument("--out", type=Path, help="folder for the plans (default ENGINE/plans)")
    parser.add_argument(
        "--compute-capability",
        nargs="+",
        metavar="X.Y",
        help=f"targets of TensorRT-RTX plans (default {' '.join(DEFAULT_CAPABILITIES)})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    out = arguments.out or arguments.engine / "plans"
    description = build_plans(arguments.engine, out, arguments.compute_capability)
    if arguments.json:
        print(json.dumps({"out": str(out), **description}))
    else:
        print(
            f"{out}: {len(description['plans'])} plans by {description['builder']} "
            f"{description['version']} for {', '.join(description['compute_capabilities'])}",
        )
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
