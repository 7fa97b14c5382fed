"""The commands as a person runs them: output, exit codes, one-line errors."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.conftest import ENGINE, GALLERY, ROOT

PHOTO = next((GALLERY / "part-00000" / "photos").iterdir())
LINE = {"rank", "id", "path", "caption", "score", "probability", "stage1_score", "stage1_rank"}


def run(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def refused(result: subprocess.CompletedProcess, *words: str) -> None:
    assert result.returncode == 2, result.stderr
    assert result.stdout == "" and "Traceback" not in result.stderr
    message = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert len(message) == 1
    for word in words:
        assert word in message[0]


def test_search_prints_nothing_but_result_lines():
    result = run("app.search", "a dog in the snow", "-k", 3, "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.returncode == 0 and [line["rank"] for line in lines] == [1, 2, 3]
    assert all(set(line) == LINE and (ROOT / line["path"]).is_file() for line in lines)


def test_search_by_photo_and_by_a_file_of_captions(tmp_path):
    result = run("app.search", "--image", PHOTO, "-k", 2, "--json")
    assert len(result.stdout.splitlines()) == 2
    result = run("app.search", "--image", PHOTO, "--find", "photos", "-k", 1, "--json")
    assert json.loads(result.stdout)["path"].endswith(PHOTO.name)
    queries = tmp_path / "captions.txt"
    queries.write_text("a dog\n\na red flower\n", "utf-8")
    result = run("app.search", "--queries", queries, "-k", 1, "--json")
    assert [json.loads(line)["query"] for line in result.stdout.splitlines()] == [1, 3]


def test_a_long_caption_is_cut_and_said_so():
    result = run("app.search", "dog " * 2000, "-k", 1, "--json")
    assert result.returncode == 0 and len(result.stdout.splitlines()) == 1
    assert "2,000 words" in result.stderr


def test_bad_queries_are_refused(tmp_path):
    text = tmp_path / "notes.jpg"
    text.write_text("hello")
    half = tmp_path / "half.jpg"
    half.write_bytes(PHOTO.read_bytes()[: PHOTO.stat().st_size // 2])
    refused(run("app.search", "   "), "no words")
    refused(run("app.search", "--image", text), "notes.jpg", "not a photo")
    refused(run("app.search", "--image", half), "half.jpg", "damaged")
    refused(run("app.explain", tmp_path / "none.jpg", "a dog"), "none.jpg", "does not exist")
    refused(run("app.search", "--queries", tmp_path / "none.txt"), "none.txt")
    assert run("app.search", "a dog", "-k", 0).returncode == 2


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "other", "format 1"])
def test_bad_engines_are_refused(tmp_path, damage):
    folder = tmp_path / "engine"
    if damage != "missing":
        folder.mkdir()
    if damage in ("truncated", "other", "format 1"):
        shutil.copytree(ENGINE, folder, dirs_exist_ok=True)
    if damage == "truncated":
        weights = folder / "text_encoder-0.bin"
        weights.write_bytes(weights.read_bytes()[:-100])
    if damage == "other":
        description = json.loads((folder / "engine.json").read_text())
        description["stage1"]["sha256"] = "0" * 64
        (folder / "engine.json").write_text(json.dumps(description))
    if damage == "format 1":
        (folder / "engine.json").write_text(json.dumps({"format_version": 1}))
    words = {"other": "app.gallery encode", "format 1": "export.build_onnx"}.get(damage, "engine")
    refused(run("app.search", "a dog", "--engine", folder), str(folder), words)


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "not json", "format 1"])
def test_bad_galleries_are_refused(tmp_path, damage):
    folder = tmp_path / "gallery"
    if damage != "missing":
        folder.mkdir()
    if damage == "truncated":
        shutil.copytree(GALLERY, folder, dirs_exist_ok=True)
        for sides in (folder / "part-00001").glob("sides*.npy"):  # of every engine
            sides.write_bytes(sides.read_bytes()[:5000])
    if damage == "not json":
        (folder / "gallery.json").write_text('{"format_version": 2')
    if damage == "format 1":
        (folder / "gallery.json").write_text('{"format_version": 1}')
    refused(run("app.search", "a dog", "--gallery", folder), str(folder))


def test_a_backend_that_is_not_there_is_refused():
    refused(run("app.search", "a dog", "--backend", "tensorrt"), "tensorrt")


def test_explain_writes_a_figure_and_json(tmp_path):
    figure = tmp_path / "figure.png"
    result = run("app.explain", PHOTO, "a photo of a building", "--out", figure, "--json")
    document = json.loads(result.stdout)
    assert figure.read_bytes()[:4] == b"\x89PNG" and document["words"][-1] == "building"
    assert len(document["word_attention"]) == 5 and len(document["word_attention"][0]) == 36
    assert len(document["region_boxes"]) == 36
    assert len(document["word_gates"]) == 5 and document["attention_of"] == "words"


@pytest.mark.parametrize("name", ["mmca", "dive-scan"])
def test_search_and_explain_with_another_pair(small_gallery, tiny, tmp_path, name):
    flags = ("--engine", tiny / "engines" / name, "--json")
    result = run("app.search", "a thing", "-k", 3, "--gallery", small_gallery, *flags)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.returncode == 0, result.stderr
    assert all(set(line) == LINE for line in lines) and len(lines) == 3
    assert ("MMCA" if name == "mmca" else "SCAN") in result.stderr
    figure = tmp_path / "figure.png"
    document = json.loads(run("app.explain", PHOTO, "a thing", "--out", figure, *flags).stdout)
    assert figure.read_bytes()[:4] == b"\x89PNG" and document["word_gates"] is None
    assert document["attention_of"] == ("words" if name == "mmca" else "regions")
    for weights in document["word_attention"]:
        assert len(weights) == 36 and sum(weights) == pytest.approx(1, abs=1e-3)
    result = run("app.explain", PHOTO, "a thing", *flags[:2])
    assert result.returncode == 0 and "has no gates" in result.stdout


def test_app_refuses_a_broken_engine_before_it_serves(tmp_path):
    result = subprocess.run(
        [sys.executable, "app.py", "--engine", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 2 and "error: engine" in result.stderr
    assert "Traceback" not in result.stderr


def test_paths_are_shown_as_seen_from_here():
    result = run("app.search", "a dog", "-k", 1, "--json")
    assert not Path(json.loads(result.stdout)["path"]).is_absolute()
