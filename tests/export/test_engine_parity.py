"""The committed engine against torch, on the trained weights."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from export import verify
from export.graphs import DEFAULT_CHECKPOINT, TrainedGraphs
from export.parity import SIZES, measure_parity
from matching.checkpoint import load_checkpoint
from matching.contract import PAIR_OUTPUTS, Axis
from matching.contract import graphs as graph_specs
from matching.engine import Engine
from matching.engine_description import DEFAULT_ENGINE

ROOT = Path(__file__).parents[2]
ENGINE, CHECKPOINT = ROOT / DEFAULT_ENGINE, ROOT / DEFAULT_CHECKPOINT
GRAPHS = graph_specs(0, PAIR_OUTPUTS)
PAIR_SCORER = GRAPHS[-1]


@pytest.fixture(scope="module")
def graphs() -> TrainedGraphs:
    return TrainedGraphs.load(CHECKPOINT / "vse_infinity", CHECKPOINT / "camp")


def test_every_output_agrees(graphs):
    differences = measure_parity(graphs, ENGINE.joinpath)
    assert differences.keys() == {f"{g.name}.{o.name}" for g in GRAPHS for o in g.outputs}
    bounded = [v for k, v in differences.items() if not k.endswith(("side", "logit"))]
    assert max(bounded) < 1e-5  # embeddings, attention and gates are at most 1
    assert max(differences.values()) < 5e-4


def test_the_comparison_can_fail(graphs):
    """Scores differ from pair to pair, and ignoring the mask is seen."""
    image_side, caption_side, mask = graphs.example(PAIR_SCORER, *SIZES[3])
    with torch.inference_mode():
        scores = graphs.pair_scorer(image_side, caption_side, mask)
        unmasked = graphs.pair_scorer(image_side, caption_side, torch.ones_like(mask))
    assert scores.logit.std() > 0.1
    assert (scores.logit - unmasked.logit).abs().max() > 1e-2


def test_graphs_keep_the_contract():
    for graph in GRAPHS:
        model = onnx.load(ENGINE / f"{graph.name}.onnx", load_external_data=False)
        assert model.opset_import[0].version >= 20
        for specs, values in (
            (graph.inputs, model.graph.input),
            (graph.outputs, model.graph.output),
        ):
            assert [s.name for s in specs] == [v.name for v in values]
            for spec, value in zip(specs, values, strict=True):
                dims = value.type.tensor_type.shape.dim
                for axis, dim in zip(spec.axes, dims, strict=True):
                    assert not isinstance(axis, Axis) or not dim.HasField("dim_value")
        text = (ENGINE / f"{graph.name}.onnx").read_bytes()
        assert b"/site-packages/" not in text and b".py" not in text  # no traces of a machine


def test_photos_and_captions_do_not_depend_on_their_batch():
    engine = Engine(ENGINE, "cpu")
    rng = np.random.default_rng(0)
    pixels = list(rng.integers(0, 256, (3, 256, 256, 3), np.uint8))
    together, alone = engine.encode_photos(pixels), engine.encode_photos(pixels[2:])
    np.testing.assert_allclose(together[1][2], alone[1][0], atol=2e-4)
    captions = [engine.captions.read(t) for t in ("a dog", "two old men play chess in a park")]
    both, one = engine.encode_captions(captions), engine.encode_captions(captions[:1])
    np.testing.assert_allclose(both[0][0], one[0][0], atol=2e-6)
    np.testing.assert_allclose(both[1][0], one[1][0], atol=2e-4)


def test_verify_tells_apart(tmp_path, capsys):
    assert verify.main(["--checkpoint", str(CHECKPOINT), "--engine", str(ENGINE), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["agrees"] is True
    other = tmp_path / "engine"
    shutil.copytree(ENGINE, other, ignore=shutil.ignore_patterns("plans"))
    description = json.loads((other / "engine.json").read_text())
    description["scorer"]["sha256"] = "0" * 64
    (other / "engine.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match="was not made from"):
        verify.main(["--checkpoint", str(CHECKPOINT), "--engine", str(other)])


@pytest.mark.parametrize("name", ["standard", "large"])
def test_the_engines_hold_the_banks_of_their_stage_1(name):
    ours = load_checkpoint(ROOT / "checkpoints" / name / "vse_infinity").popularity
    theirs = Engine(ROOT / "engines" / name, "cpu").popularity
    assert ours.captions.shape == ours.photos.shape == (4000, 384)
    assert (ours.captions == theirs.captions).all() and (ours.photos == theirs.photos).all()


def test_the_engine_is_small():
    files = [p for p in ENGINE.rglob("*") if p.is_file() and "plans" not in p.parts]
    assert sum(p.stat().st_size for p in files) < 60e6
    assert max(p.stat().st_size for p in files) < 10e6


@pytest.mark.parametrize(
    ("name", "stage1", "scorer"),
    [
        ("large", "large/vse_infinity", "large/camp"),
        ("small", "small/vse_infinity", "small/camp"),
        ("default", "default/vse_infinity", "default/camp"),
        ("dive", "default/dive", "default/camp"),
        ("mmca", "default/mmca", "default/mmca"),
    ],
)
def test_the_other_engines_agree_with_their_checkpoints(name, stage1, scorer, capsys):
    checkpoints = ROOT / "checkpoints"
    folders = ["--stage1", str(checkpoints / stage1), "--scorer", str(checkpoints / scorer)]
    assert verify.main([*folders, "--engine", str(ROOT / "engines" / name), "--json"]) == 0
    differences = json.loads(capsys.readouterr().out)["differences"]
    bounded = [v for k, v in differences.items() if not k.endswith(("side", "logit"))]
    assert max(bounded) < 1e-5
