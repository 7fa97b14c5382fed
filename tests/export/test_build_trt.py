"""A TensorRT-RTX plan of every graph, built without a GPU; clear words where none can be."""

import json
from pathlib import Path

import pytest

from export import build_trt
from matching.contract import GRAPH_NAMES
from matching.engine_description import DEFAULT_ENGINE

ENGINE = Path(__file__).parents[2] / DEFAULT_ENGINE


def test_a_plan_of_each_graph_builds(tmp_path, capsys):
    pytest.importorskip("tensorrt_rtx")
    flags = [
        "--engine",
        str(ENGINE),
        "--out",
        str(tmp_path),
        "--compute-capability",
        "8.6",
        "--json",
    ]
    assert build_trt.main(flags) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["compute_capabilities"] == ["8.6"]
    for name in GRAPH_NAMES:
        plan = tmp_path / f"{name}.plan"
        assert plan.stat().st_size == document["plans"][plan.name]["size_bytes"] > 10_000


def test_an_unknown_capability_is_named(tmp_path):
    pytest.importorskip("tensorrt_rtx")
    with pytest.raises(ValueError, match="9.99"):
        build_trt.build_plans(ENGINE, tmp_path, ["9.99"])


def test_without_any_builder_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(build_trt, "_import", lambda name: None)
    with pytest.raises(ValueError, match="no NVIDIA GPU"):
        build_trt.build_plans(ENGINE, tmp_path, None)
    assert not list(tmp_path.iterdir())
