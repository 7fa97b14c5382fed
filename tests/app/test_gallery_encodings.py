"""Galleries that several engines can search: encodings added, completed after a kill, dropped."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app import gallery_encoder
from app.engine_choice import EngineChoice, fitting_engines
from app.gallery import main
from app.gallery_builder import add_photos, build_gallery
from app.gallery_encoder import add_encodings
from app.gallery_folder import Gallery
from app.gallery_index import GalleryError, Index
from matching.engine import Engine
from tests.app.conftest import ENGINE, GALLERY


@pytest.fixture(scope="module")
def mmca(tiny) -> Engine:
    return Engine(tiny / "engines" / "mmca", "cpu")


@pytest.fixture
def gallery(tmp_path, engine, monkeypatch) -> Path:
    """Three parts, by the default engine alone."""
    photos, folder = tmp_path / "photos", tmp_path / "gallery"
    photos.mkdir()
    for path in sorted((GALLERY / "part-00000" / "photos").iterdir())[:5]:
        shutil.copyfile(path, photos / path.name)
    monkeypatch.setattr("app.gallery_builder.PART_PHOTOS", 2)
    build_gallery(photos, folder, engine)
    return folder


def arrays(folder: Path) -> dict[str, np.ndarray]:
    return {str(p.relative_to(folder)): np.load(p) for p in folder.rglob("*.npy")}


def test_two_encodings_stand_beside_each_other(gallery, engine, mmca):
    with pytest.raises(GalleryError, match="python -m app.gallery encode .* --engine"):
        Gallery(gallery, mmca)
    before = arrays(gallery)
    assert add_encodings(gallery, mmca) == ["MMCA", "MMCA"]
    assert add_encodings(gallery, mmca) == []
    index = Index.read(gallery)
    assert [e.title for e in index.stage1] == ["VSE-infinity", "MMCA"]
    assert [e.shape for e in index.scorer] == [(36, 896), (37, 16)]
    after = arrays(gallery)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    opened = Gallery(gallery, mmca)
    photo = mmca.encode_photos([_pixels(opened, 4)])
    np.testing.assert_allclose(opened.embeddings[4], photo[0][0], atol=2e-3)
    np.testing.assert_allclose(opened.sides(np.array([4])), photo[1], atol=1e-2)
    assert len(Gallery(gallery, engine).items) == 5


def _pixels(gallery: Gallery, photo: int) -> np.ndarray:
    from matching.image import open_photo, photo_pixels

    return photo_pixels(open_photo(gallery.photo_path(photo), "photo"))


def test_a_killed_encode_goes_on(gallery, mmca, tmp_path, monkeypatch):
    whole = shutil.copytree(gallery, tmp_path / "whole")
    add_encodings(whole, mmca)
    before = (gallery / "gallery.json").read_bytes()
    encode, calls = gallery_encoder._encode_part, []

    def killed(*arguments):
        calls.append(arguments[1])
        if len(calls) == 2:
            raise KeyboardInterrupt
        encode(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(gallery_encoder, "_encode_part", killed)
        with pytest.raises(KeyboardInterrupt):
            add_encodings(gallery, mmca)
    assert (gallery / "gallery.json").read_bytes() == before  # nothing half is listed
    monkeypatch.setattr(
        gallery_encoder, "_encode_part", lambda *a: (calls.append(a[1]), encode(*a))
    )
    add_encodings(gallery, mmca)
    assert calls == ["part-00000", "part-00001", "part-00001", "part-00002"]
    ours, theirs = arrays(gallery), arrays(whole)
    assert ours.keys() == theirs.keys() and Index.read(gallery) == Index.read(whole)
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name])


def test_engines_share_what_both_have(small_gallery, tiny):
    """The scorer's key does not depend on stage 1, nor the other way round."""
    mmca, other = (Engine(tiny / "engines" / n, "cpu").description for n in ("mmca", "dive-scan"))
    index = Index.read(small_gallery)
    assert index.fits(mmca) and index.fits(other)
    mixed = index.with_encodings_only_of(mmca)
    assert not mixed.fits(other) and mixed.with_encodings_of(other).fits(other)
    assert index.with_encodings_of(other) == index
    suffixes = [e.suffix for e in (*index.stage1, *index.scorer)]
    assert suffixes[0] == "" and len({e.suffix for e in index.stage1}) == 3
    assert index.stage1[1].suffix == f"-mmca-{mmca.stage1_key[:8]}"


def test_adding_photos_drops_other_encodings_and_encode_brings_them_back(
    gallery, engine, mmca, tmp_path, capsys
):
    add_encodings(gallery, mmca)
    Image.new("RGB", (300, 200), "red").save(tmp_path / "photos" / "new.png")
    flags = ["--engine", str(ENGINE), "--json"]
    assert main(["add", str(tmp_path / "photos"), "--to", str(gallery), *flags]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["dropped"] == ["MMCA", "MMCA"]
    assert "app.gallery encode" in printed.err
    assert len(Gallery(gallery, engine).items) == 6
    with pytest.raises(GalleryError):
        Gallery(gallery, mmca)
    assert main(["encode", str(gallery), "--engine", str(mmca.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["added"] == ["MMCA", "MMCA"]
    assert len(Gallery(gallery, mmca).items) == 6
    # Adding by the other engine: files whose names do not tell their weights are gone.
    Image.new("RGB", (300, 200), "blue").save(tmp_path / "photos" / "newer.png")
    assert add_photos(tmp_path / "photos", gallery, mmca).dropped == ("VSE-infinity", "CAMP")
    assert not list(gallery.rglob("sides.npy")) and len(Gallery(gallery, mmca).items) == 7
    add_encodings(gallery, engine)
    assert len(Gallery(gallery, engine).items) == 7


def test_a_damaged_encoding_is_named(gallery, mmca):
    add_encodings(gallery, mmca)
    path = next(gallery.glob("part-00001/sides-mmca-*.npy"))
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(GalleryError, match="part-00001 is damaged"):
        Gallery(gallery, mmca)


def test_the_choice_of_engines(small_gallery, tiny, tmp_path, engine):
    """Beside the default one those that fit; broken and other ones are passed over."""
    engines = tmp_path / "engines"
    shutil.copytree(tiny / "engines", engines)
    shutil.copytree(ENGINE, engines / "default", ignore=shutil.ignore_patterns("plans"))
    (engines / "broken").mkdir()
    (engines / "broken" / "engine.json").write_text("{}")
    found = fitting_engines(small_gallery, engines / "default")
    assert [folder.name for folder in found] == ["default", "dive-scan", "mmca"]
    choice = EngineChoice(small_gallery, found, "cpu")
    assert choice.names == [engine.description.name, "DivE + SCAN (i2t)", "MMCA"]
    assert choice["MMCA"] is choice["MMCA"]
    assert len(choice["MMCA"].find_photos("a thing", 3).matches) == 3
    with pytest.raises(ValueError, match="no engine 'other'"):
        choice["other"]
    only = fitting_engines(GALLERY, engines / "default")
    assert [folder.name for folder in only] == ["default"]
    with pytest.raises(GalleryError, match="app.gallery encode"):
        EngineChoice(GALLERY, [engines / "mmca"], "cpu")
