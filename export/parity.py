"""How far an engine is from the torch modules it was made from, output by output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from export.graphs import TrainedGraphs

# Photos and captions of the runs: alone, more photos, more captions, a full run of the scorer.
SIZES = ((1, 1), (2, 1), (1, 3), (5, 5), (16, 2))
TOLERANCE = 1e-3  # logits reach tens; attention, gates and embeddings stay far below it


def measure_parity(graphs: TrainedGraphs, path: Callable[[str], Path]) -> dict[str, float]:
    """The largest absolute difference of each output over all SIZES; keys are graph.output.

    path: from the name of a file to where it lies.
    """
    worst: dict[str, float] = {}
    for graph in graphs.specs:
        session = onnxruntime.InferenceSession(
            path(f"{graph.name}.onnx"),
            providers=["CPUExecutionProvider"],
        )
        for photos, captions in SIZES:
            inputs = graphs.example(graph, photos, captions)
            names = [spec.name for spec in graph.inputs]
            feed = {n: t.numpy() for n, t in zip(names, inputs, strict=True)}
            with torch.inference_mode():
                parts = graphs.module(graph)(*inputs)
                expected = [part for part in parts if part is not None]
            for spec, ours, theirs in zip(
                graph.outputs,
                session.run(None, feed),
                expected,
                strict=True,
            ):
                key = f"{graph.name}.{spec.name}"
                difference = float(np.abs(ours - theirs.numpy()).max())
                worst[key] = max(worst.get(key, 0.0), difference)
    return worst
