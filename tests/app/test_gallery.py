"""Galleries of one's own photos: build, add, remove, and what a kill leaves behind."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from app import gallery_builder
from app.gallery import main
from app.gallery_builder import Growth, add_photos, build_gallery, remove_photos
from app.gallery_folder import Gallery
from app.retrieval import Retriever
from tests.app.conftest import ENGINE, GALLERY


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    for index, path in enumerate(sorted((GALLERY / "part-00000" / "photos").iterdir())[:7]):
        shutil.copyfile(path, folder / ("sub" if index % 2 else ".") / path.name)
    (folder / "notes.txt").write_text("no photo")
    return folder


def ids(folder: Path, engine) -> list[str]:
    return [item.id for item in Gallery(folder, engine).items]


def test_build_search_add_remove(photos, tmp_path, engine, monkeypatch):
    monkeypatch.setattr(gallery_builder, "PART_PHOTOS", 3)
    out = tmp_path / "gallery"
    assert build_gallery(photos, out, engine) == Growth(7)
    assert len(ids(out, engine)) == 7
    found = Retriever(engine, Gallery(out, engine)).find_photos("a dog", 20)
    assert len(found.matches) == 7 and found.matches[0].caption is None
    Image.new("RGB", (2000, 1000), "red").save(photos / "new.png")
    assert add_photos(photos, out, engine) == Growth(1)
    new = next(i for i in Gallery(out, engine).items if i.id == "new.png")
    assert max(new.width, new.height) == 640 and new.path.endswith(".jpg")
    remove_photos(out, ["new.png"])
    assert "new.png" not in ids(out, engine)
    with pytest.raises(ValueError, match="new.png"):
        remove_photos(out, ["new.png"])
    assert add_photos(photos, out, engine) == Growth(1) and "new.png" in ids(out, engine)


def test_a_killed_build_goes_on(photos, tmp_path, engine, monkeypatch):
    monkeypatch.setattr(gallery_builder, "PART_PHOTOS", 3)
    out, whole = tmp_path / "gallery", tmp_path / "whole"
    build_gallery(photos, whole, engine)
    make, calls = gallery_builder._make_part, []

    def killed(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return make(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(gallery_builder, "_make_part", killed)
        with pytest.raises(KeyboardInterrupt):
            build_gallery(photos, out, engine)
    assert len(ids(out, engine)) == 3  # what was finished can be searched
    build_gallery(photos, out, engine)
    assert ids(out, engine) == ids(whole, engine)
    files = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(out) for p in out.rglob("*") if p.is_file())
    for file in files:
        assert (whole / file).read_bytes() == (out / file).read_bytes()


def test_damaged_photos_are_left_out_and_named(photos, tmp_path, engine):
    (photos / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 broken")
    growth = build_gallery(photos, tmp_path / "gallery", engine)
    assert growth.added == 7 and len(growth.left_out) == 1 and "broken.jpg" in growth.left_out[0]


def test_check_finds_a_photo_that_went_missing(photos, tmp_path, capsys):
    out = tmp_path / "gallery"
    flags = ["--engine", str(ENGINE), "--json"]
    assert main(["build", str(photos), "--out", str(out), *flags]) == 0
    assert main(["check", str(out), *flags]) == 0
    next((out / "part-00000" / "photos").iterdir()).unlink()
    capsys.readouterr()
    assert main(["check", str(out), *flags]) == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 1


def test_the_default_gallery_names_every_licence(engine, capsys):
    gallery = Gallery(GALLERY, engine)
    assert len(gallery.items) == 474 and len(gallery.captions) == 1422
    notice = (GALLERY / "NOTICE.md").read_text("utf-8")
    for item in gallery.items:
        assert item.licence and item.id.rsplit("/", 1)[-1] in notice
    assert main(["info", str(GALLERY), "--engine", str(ENGINE), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["photos"] == 474
    keys = {kind: [e["key"] for e in found] for kind, found in document["encodings"].items()}
    assert engine.description.stage1_key in keys["stage1"]
    assert engine.description.scorer_key in keys["scorer"]
