"""Tables of the papers: resumable, honest about what is below and above, and written whole."""

import json

import pytest

from matching.reproduce import camp_runtime, camp_table3, dive_cost
from matching.reproduce.__main__ import EXPERIMENTS, main
from matching.reproduce.experiment import Setting, train_variation
from matching.reproduce.report import (
    Plot,
    Report,
    cell,
    paper_cells,
    recall_cells,
    sampling_error,
)
from tests.matching.tiny_features import write_tiny_features


def test_every_experiment_has_its_name():
    expected = (
        "vse-table6 camp-table3 camp-runtime dive-cost dive-similarity mmca-alpha mmca-dim gates"
    )
    assert set(EXPERIMENTS) == set(expected.split())


def test_a_cell_is_computed_once(tmp_path):
    calls = []
    for _ in range(3):
        assert cell(tmp_path, "one", lambda: calls.append(1) or {"x": 2}) == {"x": 2}
    assert len(calls) == 1


def test_the_papers_numbers_add_up():
    assert paper_cells("68.1 89.7 95.2 | 51.5 77.1 85.3")[2] == "466.9"  # CAMP's rsum on F30K
    ours = {"i2t": {"r1": 1, "r5": 2, "r10": 3}, "t2i": {"r1": 4, "r5": 5, "r10": 6}, "rsum": 21}
    assert recall_cells(ours) == ["1.0 / 2.0 / 3.0", "4.0 / 5.0 / 6.0", "21.0"]


def test_the_error_of_rsum_is_that_of_six_shares():
    half = {"r1": 50, "r5": 50, "r10": 50}
    retrieval = {"i2t": half, "t2i": {"r1": 0, "r5": 100, "r10": 0}}
    assert sampling_error(retrieval, 100) == pytest.approx(3**0.5 * 5)  # sqrt(0.25 / 100) is 5 %


def test_a_report_is_a_table_its_numbers_and_a_plot(tmp_path):
    plot = Plot("x", "y", {"a": ([1.0, 2.0], [3.0, 4.0])})
    report = Report(
        "demo",
        "Title",
        "setup",
        ["a", "b"],
        [["1", "2"]],
        "It holds.",
        "cmd",
        ["n"],
        plot,
        {"k": 1},
    )
    text = report.write(tmp_path).read_text()
    assert "| 1 | 2 |" in text and "**It holds.**" in text and "(demo.svg)" in text
    assert json.loads((tmp_path / "demo.json").read_text()) == {"verdict": "It holds.", "k": 1}
    first = (tmp_path / "demo.svg").read_bytes()
    report.write(tmp_path)
    assert first.startswith(b"<?xml") and (tmp_path / "demo.svg").read_bytes() == first


@pytest.fixture
def setting(tmp_path):
    from matching import train

    write_tiny_features(tmp_path / "features", train=32, val=8, test=8)
    features = ["--features", str(tmp_path / "features")]
    small = ["--epochs", "1", "--group-size", "8", "--dimension", "16", "--hidden", "16"]
    places = ["--out", str(tmp_path / "stage1"), "--run", str(tmp_path / "run")]
    assert train.main(["vse_infinity", *features, *small, *places]) == 0
    return Setting(
        tmp_path / "features", tmp_path / "work", tmp_path / "stage1", tmp_path / "none", 1, 8
    )


def test_table_3_says_for_each_row_whether_it_is_below(setting, tmp_path, monkeypatch):
    names = ("base_model", "product")
    monkeypatch.setattr(camp_table3, "TABLE3", {n: camp_table3.TABLE3[n] for n in names})
    monkeypatch.setattr(camp_table3, "_MODEL", {"dimension": 16, "key_dimension": 8, "hidden": 16})
    monkeypatch.setattr(
        camp_table3,
        "_TRAINING",
        {"groups": 2, "group_size": 4, "pool_size": 16, "epochs": 1},
    )
    report = camp_table3.run(setting)
    full = report.figures["full"]["rsum"]
    for row, name in zip(report.rows[1:-1], names, strict=True):
        difference = report.figures[name]["rsum"] - full
        spread = abs(report.figures["full, another seed"]["rsum"] - full)
        noise = max(spread, sampling_error(report.figures["full"], 8))
        expected = "level" if abs(difference) < noise else "yes" if difference < 0 else "NO"
        assert row[5].startswith(expected)
    # A second run reads what is there.
    monkeypatch.setattr("matching.reproduce.experiment.train", None)
    assert camp_table3.run(setting).rows == report.rows


def test_a_variation_is_trained_once(setting, monkeypatch):
    small = {"dimension": 16, "hidden": 16, "head_dimension": 8, "feed_forward": 16}
    training = {"group_size": 8}
    first = train_variation(setting, "dive", small, training)
    monkeypatch.setattr("matching.reproduce.experiment.train", None)
    assert train_variation(setting, "dive", small, training).sha256 == first.sha256
    with pytest.raises(TypeError):  # other settings are another variation
        train_variation(setting, "dive", {**small, "slots": 2}, training)


def test_costs_are_counted_from_graphs(tmp_path, monkeypatch):
    monkeypatch.setattr(dive_cost, "_DIMENSION", 32)
    monkeypatch.setattr(dive_cost, "_PHOTOS", 3)
    monkeypatch.setattr(dive_cost, "_CAPTIONS", 5)
    module, inputs = dive_cost._module("VSE-infinity")
    assert dive_cost.count_flops(module, inputs)["products"] == 2 * 3 * 5 * 32
    module, inputs = dive_cost._module("DivE")
    assert dive_cost.count_flops(module, inputs)["products"] == 2 * 3 * 5 * 32 * 16


def test_runtime_measures_every_way(tmp_path, monkeypatch):
    monkeypatch.setattr(camp_runtime, "_REPEATS", 1)
    times = camp_runtime._measure(20)
    assert set(times) >= {"base", "CAMP, plain", "rerank, factored"}
    assert times["CAMP, plain"] > times["base"] > 0


def test_a_missing_feature_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no features"):
        main(["camp-table3", "--features", str(tmp_path / "x"), "--work", str(tmp_path / "w")])
