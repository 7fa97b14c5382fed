"""Packing changes not one number, and every file stays small."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from export import weights
from export.weights import backbone_first, pack_weights, save_sharded, unpack_weights


def small_model() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    step = np.float16(0.01).astype(np.float32)
    table = rng.integers(-126, 127, (3000, 64)).astype(np.float32) * step
    table[:, 0] = 127 * step
    arrays = {
        "table": table,
        "half": rng.normal(size=(64, 64)).astype(np.float16).astype(np.float32),
        "single": rng.normal(size=(64, 64)).astype(np.float32) / 3,
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "half"], ["x"]),
        helper.make_node("MatMul", ["x", "single"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return model, arrays


def run(path) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"ids": np.arange(0, 3000, 7)})[0]


def test_packed_runs_to_the_same_bits_and_unpacks_exactly(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "SHARD_BYTES", 120_000)
    model, arrays = small_model()
    onnx.save(model, tmp_path / "plain.onnx")
    pack_weights(model)
    stored = {t.name: t.data_type for t in model.graph.initializer}
    assert stored["table.rows0"] == TensorProto.INT8 and stored["half.half"] == TensorProto.FLOAT16
    assert stored["single"] == TensorProto.FLOAT  # fp16 cannot hold it, so it stays
    files = save_sharded(model, tmp_path, "packed")
    assert len(files) > 2
    assert all((tmp_path / name).stat().st_size <= 120_000 for name in files)
    np.testing.assert_array_equal(run(tmp_path / "packed.onnx"), run(tmp_path / "plain.onnx"))
    loaded = onnx.load(tmp_path / "packed.onnx")
    unpack_weights(loaded)
    found = {t.name: numpy_helper.to_array(t) for t in loaded.graph.initializer}
    assert found.keys() == arrays.keys() and len(loaded.graph.node) == 3
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def encoder(width: int) -> onnx.ModelProto:
    """A backbone, the same every time, and a system, each with a weight that lost its name."""
    rng = np.random.default_rng(0)
    shapes = {
        "backbone.a": (64, 64),
        "val_1": (64, 64),
        "scorer.b": (64, width),
        "val_3": (1, width),
    }
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "backbone.a"], ["p"]),
        helper.make_node("MatMul", ["p", "val_1"], ["q"]),
        helper.make_node("MatMul", ["q", "scorer.b"], ["r"]),
        helper.make_node("Add", ["r", "val_3"], ["y"]),
    ]
    order = ("scorer.b", "backbone.a", "val_3", "val_1")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", width])],
        [numpy_helper.from_array(arrays[name], name) for name in order],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def backbone_weights(model: onnx.ModelProto) -> list[np.ndarray]:
    arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return [arrays["backbone.a"], arrays["val_1"]]


def test_engines_of_other_systems_have_the_same_backbone_files(tmp_path):
    x = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    for width in (300, 400):
        folder = tmp_path / str(width)
        folder.mkdir()
        model = encoder(width)
        plain = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
        backbone_first(model, [weights.T for weights in backbone_weights(model)])
        assert save_sharded(model, folder, "g") == ["g.onnx", "g-0.bin", "g-1.bin"]
        session = onnxruntime.InferenceSession(folder / "g.onnx")
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], plain)
    first, second = ((tmp_path / width / "g-0.bin").read_bytes() for width in ("300", "400"))
    assert first == second and len(first) == 2 * 64 * 64 * 4
