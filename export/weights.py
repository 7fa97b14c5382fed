"""Storing the weights of an ONNX graph small, without changing one of them.

A float32 weight whose values fp16 can hold is stored as fp16 and cast in the graph; a table whose
rows are whole multiples of a step is stored as int8 rows and steps. ONNX Runtime folds both into
float32 constants when it loads the graph. The numbers were rounded before training
(matching.models.storage), so nothing is lost. Files stay below SHARD_BYTES: hosts that keep large
files apart (Hugging Face Spaces from 10 MB on) then need no special treatment.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

SHARD_BYTES = 9_000_000
_SMALL = 1024  # elements: not worth a node
_PREFIX = "unpack/"
_BACKBONE = "backbone."


def backbone_first(model: ModelProto, backbone: Iterable[np.ndarray]) -> None:
    """Puts the weights of the backbone before those of the systems, in place.

    Engines of other systems then have the same files of backbone weights, byte for byte. The
    exporter gives a weight that it transposes a name of its own; `backbone`, all weights of the
    backbone, tells whose it is.
    """
    known = {array.T.tobytes() for array in backbone if array.ndim == 2}
    graph = model.graph
    renamed = {
        t.name: f"{_BACKBONE}{t.name}"
        for t in graph.initializer
        if not t.name.startswith(_BACKBONE) and numpy_helper.to_array(t).tobytes() in known
    }
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
    for tensor in graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    tensors = sorted(graph.initializer, key=lambda t: not t.name.startswith(_BACKBONE))
    del graph.initializer[:]
    graph.initializer.extend(tensors)


def pack_weights(model: ModelProto) -> None:
    """Replaces float32 initializers by packed ones and the nodes that unpack them, in place."""
    graph = model.graph
    nodes: list[NodeProto] = []
    kept: list[TensorProto] = []
    for initializer in graph.initializer:
        values = numpy_helper.to_array(initializer)
        packed = None
        if values.dtype == np.float32 and values.size > _SMALL:
            packed = _as_int8_rows(initializer.name, values) or _as_half(initializer.name, values)
        if packed is None:
            kept.append(initializer)
        else:
            tensors, unpacking = packed
            kept += tensors
            nodes += unpacking
    del graph.initializer[:]
    graph.initializer.extend(kept)
    computed = list(graph.node)
    del graph.node[:]
    graph.node.extend(nodes + computed)


def _node(kind: str, inputs: list[str], output: str, **attributes: object) -> NodeProto:
    return helper.make_node(kind, inputs, [output], name=f"{_PREFIX}{output}", **attributes)


def _as_half(name: str, values: np.ndarray) -> tuple[list[TensorProto], list[NodeProto]] | None:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.array_equal(half.astype(np.float32), values):
        return None
    tensor = numpy_helper.from_array(half, f"{name}.half")
    return [tensor], [_node("Cast", [tensor.name], name, to=TensorProto.FLOAT)]


def _as_int8_rows(
    name: str, values: np.ndarray
) -> tuple[list[TensorProto], list[NodeProto]] | None:
    if values.ndim != 2 or values.nbytes // 2 < SHARD_BYTES:  # only tables that fp16 leaves large
        return None
    step = (np.abs(values).max(1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    rows = np.round(values / np.where(step == 0, 1, step))
    if np.abs(rows).max() > 127 or not np.array_equal(rows.astype(np.float32) * step, values):
        return None
    rows = rows.astype(np.int8)
    pieces = np.array_split(rows, -(-rows.nbytes // SHARD_BYTES))
    tensors = [numpy_helper.from_array(p, f"{name}.rows{i}") for i, p in enumerate(pieces)]
    steps = numpy_helper.from_array(step, f"{name}.step")
    joined, wide = f"{name}.rows", f"{name}.wide"
    nodes = [
        _node("Concat", [t.name for t in tensors], joined, axis=0),
        _node("Cast", [joined], wide, to=TensorProto.FLOAT),
        _node("Mul", [wide, steps.name], name),
    ]
    return [*tensors, steps], nodes


def unpack_weights(model: ModelProto) -> None:
    """The reverse, in place: every weight a float32 initializer again, as TensorRT wants them."""
    graph = model.graph
    values = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    rest = []
    packed: set[str] = set()
    for node in graph.node:
        if not node.name.startswith(_PREFIX):
            rest.append(node)
            continue
        inputs = [values[name] for name in node.input]
        packed.update(node.input)
        if node.op_type == "Concat":
            values[node.output[0]] = np.concatenate(inputs)
        elif node.op_type == "Cast":
            values[node.output[0]] = inputs[0].astype(np.float32)
        else:
            values[node.output[0]] = inputs[0] * inputs[1]
    del graph.initializer[:], graph.node[:]
    graph.node.extend(rest)
    graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(array), name)
        for name, array in values.items()
        if name not in packed
    )


def save_sharded(model: ModelProto, folder: Path, name: str) -> list[str]:
    """Writes `name`.onnx with its large weights in `name`-0.bin, ...; returns the file names.

    No file holds weights of the backbone and of a system.
    """
    files = [f"{name}.onnx"]
    room, in_backbone = 0, False
    for tensor in model.graph.initializer:
        data = tensor.raw_data
        if len(data) <= _SMALL:
            continue
        was_in_backbone, in_backbone = in_backbone, tensor.name.startswith(_BACKBONE)
        if len(data) > room or in_backbone != was_in_backbone:
            files.append(f"{name}-{len(files) - 1}.bin")
            (folder / files[-1]).write_bytes(b"")
            room = SHARD_BYTES
        path = folder / files[-1]
        offset = path.stat().st_size
        with path.open("ab") as stream:
            stream.write(data)
        room -= len(data)
        onnx.external_data_helper.set_external_data(
            tensor,
            location=path.name,
            offset=offset,
            length=len(data),
        )
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
    onnx.save_model(model, folder / files[0])
    return files
