"""The bottom-up TSV and its copy as arrays."""

import base64

import numpy as np
import pytest

import matching.bottom_up as bottom_up
from matching.bottom_up import main, read_tsv, write_precomp
from matching.precomp import PrecompDataset

C = 6


def line(image_id, count, width=200, height=100, channels=C):
    rng = np.random.default_rng(int(image_id))
    low = rng.random((count, 2)) * [width / 2, height / 2]
    boxes = np.concatenate([low, low + [width / 4, height / 4]], 1).astype(np.float32)
    features = rng.random((count, channels)).astype(np.float32)
    parts = [image_id, str(width), str(height), str(count)]
    parts += [base64.b64encode(a.tobytes()).decode() for a in (boxes, features)]
    return "\t".join(parts), boxes, features


def write_tsv(path, photos):
    path.write_text("".join(line(*photo)[0] + "\n" for photo in photos))
    return path


def test_photos_are_read_with_boxes_as_fractions(tmp_path):
    path = write_tsv(tmp_path / "a.tsv", [("5", 3), ("9", 2)])
    photos = read_tsv(path, C)
    first = next(photos)
    _, boxes, features = line("5", 3)
    assert (first.image_id, first.width, first.height) == ("5", 200, 100)
    np.testing.assert_array_equal(first.features, features)
    for found, pixels in zip(first.boxes, boxes, strict=True):
        expected = [pixels[0] / 200, pixels[1] / 100, pixels[2] / 200, pixels[3] / 100]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert next(photos).features.shape == (2, C)


def test_errors_name_the_line(tmp_path):
    path = write_tsv(tmp_path / "a.tsv", [("5", 3)])
    good = path.read_text()
    path.write_text(good + good[:60])
    with pytest.raises(ValueError, match="a.tsv, line 2: 5 columns found, 6 expected"):
        list(read_tsv(path, C))
    path.write_text(good + good.rstrip()[:-8] + "\n")
    with pytest.raises(ValueError, match=r"line 2: photo 5: features have .* 3 x 6 float32 \(72\)"):
        list(read_tsv(path, C))
    path.write_text(good.replace("\t200\t", "\twide\t"))
    with pytest.raises(ValueError, match="line 1: photo 5: width, height"):
        list(read_tsv(path, C))
    path.write_text(good.replace("\t200\t", "\t0\t"))
    with pytest.raises(ValueError, match="line 1: photo 5 is 0 x 100"):
        list(read_tsv(path, C))
    with pytest.raises(FileNotFoundError, match="none.tsv is missing"):
        list(read_tsv(tmp_path / "none.tsv"))


def test_a_precomp_folder_is_written_in_the_order_of_the_ids(tmp_path):
    files = [
        write_tsv(tmp_path / "a.tsv", [("5", 3), ("9", 3), ("1", 3)]),
        write_tsv(tmp_path / "b.tsv", [("2", 3)]),
    ]
    write_precomp(files, ["2", "5", "1"], tmp_path / "out", "train", 3, C)
    ims = np.load(tmp_path / "out/train_ims.npy")
    for row, name in enumerate(("2", "5", "1")):
        np.testing.assert_array_equal(ims[row], line(name, 3)[2])
    (tmp_path / "out/train_caps.txt").write_text("a dog\n" * 6)
    dataset = PrecompDataset(tmp_path / "out", channels=C)
    assert [p.file for p in dataset.photos] == ["2", "5", "1"]
    assert dataset.region_mask(np.array([0])) is None
    expected = line("1", 3)[1] / [200, 100, 200, 100]
    np.testing.assert_allclose(dataset.region_boxes(np.array([2]))[0], expected, rtol=1e-6)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "train_boxes.npy",
        "train_caps.txt",
        "train_ids.txt",
        "train_ims.npy",
    ]
    with pytest.raises(FileExistsError, match="train_ims.npy is already there"):
        write_precomp(files, ["2"], tmp_path / "out", "train", 3, C)


def test_fewer_regions_are_padded_and_masked(tmp_path):
    path = write_tsv(tmp_path / "a.tsv", [("5", 2), ("9", 4)])
    write_precomp([path], ["5", "9"], tmp_path, "test", 5, C)
    mask = np.load(tmp_path / "test_mask.npy")
    assert mask.sum(1).tolist() == [2, 4] and mask[0].tolist() == [True, True] + [False] * 3
    ims = np.load(tmp_path / "test_ims.npy")
    assert not ims[~mask].any() and ims[mask].all()
    with pytest.raises(ValueError, match="a.tsv: photo 9 has 4 regions, at most 3 expected"):
        write_precomp([path], ["9"], tmp_path, "dev", 3, C)


def test_a_killed_run_goes_on_where_it_was(tmp_path, monkeypatch):
    path = write_tsv(tmp_path / "a.tsv", [(str(i), 3) for i in range(1, 6)])
    monkeypatch.setattr(bottom_up, "_PHOTOS_A_STEP", 2)
    whole, read = read_tsv, []

    def killed(*arguments):
        for photo in whole(*arguments):
            if len(read) == 5:
                raise KeyboardInterrupt
            read.append(photo.image_id)
            yield photo

    ids = ["1", "2", "3", "4", "5"]
    monkeypatch.setattr(bottom_up, "read_tsv", killed)
    read.extend(["-", "-"])  # so that the third photo is the last one that is read
    with pytest.raises(KeyboardInterrupt):
        write_precomp([path], ids, tmp_path, "train", 3, C)
    assert not (tmp_path / "train_ims.npy").exists()
    read.clear()
    write_precomp([path], ids, tmp_path, "train", 3, C)
    assert read == ["3", "4", "5"]  # the first two were noted as done
    ims = np.load(tmp_path / "train_ims.npy")
    for row, name in enumerate(ids):
        np.testing.assert_array_equal(ims[row], line(name, 3)[2])


def test_the_command_says_which_photos_are_missing(tmp_path, capsys):
    path = write_tsv(tmp_path / "a.tsv", [("5", 3)])
    (tmp_path / "ids.txt").write_text("5\n5\n7\n")
    arguments = [str(path), "--ids", str(tmp_path / "ids.txt"), "--out", str(tmp_path / "out")]
    arguments += ["--regions", "3", "--channels", str(C)]
    with pytest.raises(ValueError, match="1 of 2 photos are in none of .*a.tsv: 7"):
        main(arguments)
    (tmp_path / "ids.txt").write_text("5\n")
    assert main(arguments) == 0
    assert "regions and boxes of 1 photos" in capsys.readouterr().out
