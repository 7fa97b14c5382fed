"""Engines of any stage 1 and scorer: what they say of themselves, and what cannot be exported."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from export import verify
from export.build_onnx import build_engine
from export.graphs import TrainedGraphs
from matching.checkpoint import load_checkpoint, record_ranking
from matching.contract import PAIR_OUTPUTS, graphs
from matching.engine import Engine
from matching.engine_description import EngineDescription, EngineError
from matching.ranking import Ranking
from tests.tiny_engines import tiny_backbones, tiny_checkpoint


def test_an_engine_says_what_its_scorer_has(tiny):
    mmca = EngineDescription.read(tiny / "engines" / "mmca")
    assert mmca.name == "MMCA" and mmca.scorer.extra_positions == 1
    assert mmca.scorer.outputs == ("logit", "word_attention", "region_attention")
    assert mmca.stage1_key == mmca.scorer_key and mmca.stage1.similarity["kind"] == "cosine"
    pair = EngineDescription.read(tiny / "engines" / "dive-scan")
    assert pair.name == "DivE + SCAN (i2t)"
    assert pair.scorer.outputs == ("logit", "region_attention")
    assert pair.stage1.similarity["kind"] == "smooth_chamfer" and pair.embedding_width == 32
    for description in (mmca, pair):
        assert max(description.parity.values()) < 1e-4


def test_the_graphs_have_the_axes_of_their_contract(tiny):
    description = EngineDescription.read(tiny / "engines" / "mmca")
    for graph in description.graphs:
        path = tiny / "engines" / "mmca" / f"{graph.name}.onnx"
        model = onnx.load(path, load_external_data=False)
        assert [s.name for s in graph.outputs] == [o.name for o in model.graph.output]
    # One module is both stages: it is in the graph once.
    text = (tiny / "engines" / "mmca" / "text_encoder.onnx").read_bytes()
    assert text.count(b"caption_head.convolutions.0.bias") == 2  # the weight and its one use
    plain, *_ = graphs(0, PAIR_OUTPUTS)
    assert plain.outputs[1].axes[1:] == (36, "side_width")


def test_padding_and_batches_do_not_matter(tiny):
    for name in ("mmca", "dive-scan"):
        engine = Engine(tiny / "engines" / name, "cpu")
        texts = ("a dog", "two old men play chess in a park")
        captions = [engine.captions.read(text) for text in texts]
        both, one = engine.encode_captions(captions), engine.encode_captions(captions[:1])
        np.testing.assert_allclose(both[0][0], one[0][0], atol=1e-5)
        np.testing.assert_allclose(both[1][0], one[1][0], atol=1e-4)
        assert [len(side) - engine.extra_positions for side in both[1]] == [2, 8]
        assert not engine.has_gates


def test_backbone_files_are_the_same_in_every_engine(tiny):
    one, other = (EngineDescription.read(tiny / "engines" / n) for n in ("mmca", "dive-scan"))
    for graph in ("image_encoder", "text_encoder"):
        assert one.files[f"{graph}-0.bin"] == other.files[f"{graph}-0.bin"]
        assert one.files[f"{graph}-1.bin"] != other.files[f"{graph}-1.bin"]


def test_verify_finds_the_checkpoints(tiny, capsys):
    flags = ["--engine", str(tiny / "engines" / "mmca"), "--json"]
    mmca, scan = (str(tiny / "checkpoints" / name) for name in ("mmca", "scan"))
    with tiny_backbones():
        assert verify.main(["--stage1", mmca, "--scorer", mmca, *flags]) == 0
        assert json.loads(capsys.readouterr().out)["agrees"] is True
        with pytest.raises(EngineError, match="was not made from"):
            verify.main(["--stage1", mmca, "--scorer", scan, *flags])


def test_engines_share_what_is_the_same(tiny, tmp_path):
    """The same pair again shares every graph; DivE before another scorer shares none."""
    tiny = shutil.copytree(tiny, tmp_path / "tiny")
    dive, mmca, scan = (tiny / "checkpoints" / name for name in ("dive", "mmca", "scan"))
    whole = tiny / "engines" / "dive-scan"
    with tiny_backbones():
        same = build_engine(dive, scan, tiny / "engines" / "same", share_with=whole)
        assert {Path(file).parent.name for file in same.files} == {"dive-scan"}
        assert [p.name for p in (tiny / "engines" / "same").iterdir()] == ["engine.json"]
        flags = ["--stage1", str(dive), "--scorer", str(scan), "--json"]
        assert verify.main([*flags, "--engine", str(tiny / "engines" / "same")]) == 0
        record_ranking(mmca, load_checkpoint(dive), Ranking(2.0, 1.0, 0.5))
        other = build_engine(dive, mmca, tiny / "engines" / "other", share_with=whole)
        assert [f for f in other.files if f.startswith("..")] == ["../dive-scan/tokenizer.json"]
        with pytest.raises(ValueError, match="another engine beside"):
            build_engine(dive, scan, tiny / "elsewhere" / "same", share_with=whole)
    texts = [Engine(whole, "cpu").captions.read("a dog in the snow")]
    engines = [Engine(tiny / "engines" / name, "cpu") for name in ("dive-scan", "same")]
    one, two = (engine.encode_captions(texts)[0] for engine in engines)
    np.testing.assert_array_equal(one, two)


def test_what_cannot_be_an_engine_is_refused(tiny, tmp_path):
    dive, mmca, scan = (tiny / "checkpoints" / name for name in ("dive", "mmca", "scan"))
    with pytest.raises(ValueError, match="scan.* cannot be stage1"):
        TrainedGraphs.load(scan, mmca)
    with pytest.raises(ValueError, match="dive.* cannot be scorer"):
        TrainedGraphs.load(mmca, dive)
    with tiny_backbones(), pytest.raises(ValueError, match="no final score"):
        build_engine(mmca, scan, tmp_path / "engine")
    assert not list(tmp_path.iterdir())
    backbone = load_checkpoint(mmca).config["backbone_sha256"]
    grid = tiny_checkpoint(tmp_path / "grid", "mmca", backbone, region_encoder="linear")
    with tiny_backbones(), pytest.raises(ValueError, match="'linear'.*'taps' and 'minilm'"):
        build_engine(grid.folder, grid.folder, tmp_path / "engine")
    other = tiny_checkpoint(tmp_path / "other", "mmca", "0" * 64)
    with tiny_backbones(), pytest.raises(ValueError, match="backbones '000000000000'"):
        build_engine(other.folder, other.folder, tmp_path / "engine")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format_version": 1}, "format 1"),
        ({"num_regions": 49}, "49 regions"),
        ({"unknown": 1}, "unknown"),
        ({"scorer": {}}, "outputs"),
    ],
)
def test_an_engine_that_does_not_fit_is_refused(tiny, tmp_path, change, words):
    folder = tmp_path / "engine"
    folder.mkdir()
    document = json.loads((tiny / "engines" / "mmca" / "engine.json").read_text())
    (folder / "engine.json").write_text(json.dumps({**document, **change}))
    with pytest.raises(EngineError, match=words):
        EngineDescription.read(folder)


def test_a_missing_file_is_named(tiny, tmp_path):
    folder = tmp_path / "engine"
    shutil.copytree(tiny / "engines" / "mmca", folder)
    (folder / "pair_scorer.onnx").unlink()
    with pytest.raises(EngineError, match="lacks its file pair_scorer.onnx"):
        Engine(folder, "cpu")
