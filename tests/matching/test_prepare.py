"""Features of a killed and resumed run are those of an undisturbed one, and fit the photos."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from matching import features, lower_maps, photo_shards, prepare
from matching.features import Features
from matching.image import open_photo, photo_pixels, pixel_batch
from matching.models.image_backbone import ImageBackbone
from matching.models.text_backbone import LowerTextBackbone, backbone_folder
from matching.text import CaptionReader, caption_batch


class Killed(BaseException):
    pass


@pytest.fixture
def data(tmp_path) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    photos = tmp_path / "photos"
    photos.mkdir()
    rows = []
    for index in range(10):
        pixels = rng.integers(0, 256, (30, 40, 3), np.uint8)
        Image.fromarray(pixels).resize((320, 240)).save(photos / f"{index}.png")
        captions = ["A dog .", "two skateboarders"][: 1 + index % 2]
        rows.append({"file": f"{index}.png", "split": "train", "captions": captions})
    captions = tmp_path / "captions.jsonl.gz"
    with gzip.open(captions, "wt", encoding="utf-8") as stream:
        stream.write("".join(json.dumps(row) + "\n" for row in rows))
    return captions, photos


@pytest.fixture
def small_shards(monkeypatch):
    for module in (features, photo_shards, lower_maps):
        monkeypatch.setattr(module, "PHOTOS_PER_SHARD", 4)
    for module in (features, prepare):
        monkeypatch.setattr(module, "CAPTIONS_PER_SHARD", 6)


def test_killed_and_resumed_is_the_same(data, tmp_path, monkeypatch, small_shards):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    prepare.prepare(*data, whole)
    write, written = photo_shards.write_array, []

    def killed(path, array):
        if len(written) == 1:
            raise Killed
        written.append(path)
        write(path, array)

    with monkeypatch.context() as patch:
        patch.setattr(photo_shards, "write_array", killed)
        with pytest.raises(Killed):
            prepare.prepare(*data, broken)
    prepare.prepare(*data, broken)
    names = sorted(p.name for p in whole.iterdir())
    assert names == sorted(p.name for p in broken.iterdir())
    for name in names:
        assert (whole / name).read_bytes() == (broken / name).read_bytes()


def test_features_are_those_of_the_backbones(data, tmp_path, small_shards):
    out = tmp_path / "features"
    prepare.prepare(*data, out)
    read = Features(out)
    pixels = [photo_pixels(open_photo(data[1] / f"{i}.png")) for i in (9, 2)]
    with torch.inference_mode():
        expected = ImageBackbone()(torch.from_numpy(pixel_batch(pixels))).numpy()
    np.testing.assert_allclose(read.regions(np.array([9, 2])), expected, atol=5e-3, rtol=2e-3)
    reader = CaptionReader(backbone_folder() / "tokenizer.json")
    batch = caption_batch([reader.read("two skateboarders"), reader.read("A dog .")])
    with torch.inference_mode():
        hidden = LowerTextBackbone()(torch.from_numpy(batch.piece_ids)).numpy()
    second_of_9 = int(read.caption_starts[9]) + 1
    found = read.pieces(np.array([second_of_9, read.caption_starts[0]]))
    real = batch.piece_ids != 0
    np.testing.assert_array_equal(found.piece_mask, real)
    np.testing.assert_allclose(found.word_pieces, batch.word_pieces)
    np.testing.assert_allclose(found.hidden[real], hidden[real], atol=5e-3, rtol=2e-3)


def test_wrong_captions_beside_the_true_ones(data, tmp_path, small_shards):
    out = tmp_path / "features"
    prepare.prepare(*data, out, swaps=True)
    read = Features(out)
    dogs, skaters = (np.array([i for i in range(15) if _text(read, i) == t]) for t in TEXTS)
    assert (read.changed_words(dogs) == 1).all()
    assert (read.changed_words(skaters) == 0).all()
    wrong, true = read.swapped(dogs[:3]), read.pieces(dogs[:3])
    assert wrong.word_pieces.shape[:2] == (3, 2)
    # As the text backbone reads them: the changed word differs, and with it all that saw it.
    assert (np.abs(wrong.hidden - true.hidden[:, : wrong.hidden.shape[1]]).max((1, 2)) > 0.1).all()


TEXTS = ("A dog .", "two skateboarders")


def _text(read: Features, caption: int) -> str:
    photo = int(np.searchsorted(read.caption_starts, caption, side="right")) - 1
    return read.photos[photo].captions[caption - int(read.caption_starts[photo])]


def test_maps_of_the_lower_backbone_give_the_same_regions(data, tmp_path, small_shards):
    captions, photos = data
    out = tmp_path / "maps"
    assert lower_maps.make_maps(captions, photos, out, lower_maps.VIEWS) == 10
    maps = lower_maps.LowerMaps(out)
    members = np.array([9, 2])
    pixels = pixel_batch([photo_pixels(open_photo(photos / f"{i}.png")) for i in members])
    backbone = ImageBackbone()
    for mirrored, turned in ((False, pixels), (True, pixels[..., ::-1].copy())):
        found = maps.maps(members, np.array([mirrored] * 2))
        with torch.inference_mode():
            regions = backbone.upper(torch.from_numpy(found).float()).numpy()
            expected = backbone(torch.from_numpy(turned)).numpy()
        np.testing.assert_allclose(regions, expected, atol=2e-2, rtol=2e-2)
    prepare.prepare(captions, photos, tmp_path / "photos-read")
    prepare.prepare(captions, tmp_path / "none", tmp_path / "maps-read", maps=out)
    read, again = Features(tmp_path / "photos-read"), Features(tmp_path / "maps-read")
    expected = read.regions(np.arange(10)).astype(np.float32)
    np.testing.assert_allclose(again.regions(np.arange(10)), expected, atol=2e-2, rtol=2e-2)
    (out / "maps-plain-00001.npy").unlink()
    with pytest.raises(ValueError, match="maps-plain-00001.npy"):
        lower_maps.LowerMaps(out)


def test_what_is_wrong_is_named(data, tmp_path, small_shards):
    captions, photos = data
    out = tmp_path / "features"
    prepare.prepare(captions, photos, out)
    shard = out / "regions-00001.npy"
    shard.write_bytes(shard.read_bytes()[:1000])
    with pytest.raises(ValueError, match="regions-00001.npy"):
        Features(out)
    captions.write_bytes(captions.read_bytes()[:-20])
    with pytest.raises(ValueError, match="captions.jsonl.gz"):
        prepare.prepare(captions, photos, out)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        prepare.prepare(tmp_path / "nowhere.jsonl", photos, out)
