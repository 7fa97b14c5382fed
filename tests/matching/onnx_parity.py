"""A module through torch.onnx.export into ONNX Runtime, for comparing the two."""

import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import torch


def dimension(name: str) -> torch.export.Dim:
    return torch.export.Dim(name, min=1, max=4096)


def exported_session(
    module: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    dynamic_shapes: tuple[dict[int, torch.export.Dim], ...],
    input_names: list[str],
    output_names: list[str],
) -> onnxruntime.InferenceSession:
    """example: distinct sizes of at least two, as sizes of one are frozen by the exporter."""
    # torch 2.13 keeps the first export's kernel of a GRU; the next export would fix its length.
    torch.ops.aten.gru.input._dispatch_cache.clear()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "graph.onnx"
        torch.onnx.export(
            module,
            example,
            path,
            input_names=input_names,
            output_names=output_names,
            dynamic_shapes=dynamic_shapes,
            opset_version=20,
            dynamo=True,
            verbose=False,
        )
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, *inputs: torch.Tensor) -> list[np.ndarray]:
    names = [i.name for i in session.get_inputs()]
    return session.run(None, {n: t.numpy() for n, t in zip(names, inputs, strict=True)})
