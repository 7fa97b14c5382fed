"""SCAN's precomp folders."""

import numpy as np
import pytest

from matching.precomp import PrecompDataset


def write_split(folder, split, photos=4, each=3, redundant=False, regions=5, channels=8, ids=True):
    """Regions of photo p are all p + 1 (plus the split's length as a mark), captions name both."""
    rows = np.arange(1, photos + 1, dtype=np.float32) + 100 * len(split)
    ims = np.broadcast_to(rows[:, None, None], (photos, regions, channels)).copy()
    names = [str(1000 + p) for p in range(photos)]
    if redundant:
        ims, names = ims.repeat(each, 0), [name for name in names for _ in range(each)]
    np.save(folder / f"{split}_ims.npy", ims)
    captions = [f"photo {p} caption {c} ." for p in range(photos) for c in range(each)]
    (folder / f"{split}_caps.txt").write_text("\n".join(captions) + "\n", "utf-8")
    if ids:
        (folder / f"{split}_ids.txt").write_text("\n".join(names) + "\n")


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("redundant", [True, False])
def test_both_layouts_give_the_same_photos(tmp_path, redundant, ids):
    write_split(tmp_path, "train", photos=4, redundant=redundant, ids=ids)
    write_split(tmp_path, "dev", photos=2)
    write_split(tmp_path, "testall", photos=3, redundant=True)
    dataset = PrecompDataset(tmp_path, captions_a_photo=3)
    assert [p.captions[2] for p in dataset.photos[:4]] == [
        f"photo {p} caption 2 ." for p in range(4)
    ]
    assert dataset.splits.tolist() == ["train"] * 4 + ["val"] * 2 + ["testall"] * 3
    assert dataset.num_captions == 27 and dataset.region_shape == (5, 8)
    assert dataset.caption_starts.tolist() == list(range(0, 28, 3))
    assert dataset.photos_of("val").tolist() == [4, 5]
    assert dataset.captions_of(5).tolist() == [15, 16, 17]
    regions = dataset.regions(np.array([8, 0, 3, 5]))
    assert regions.shape == (4, 5, 8)
    assert regions[:, 4, 7].tolist() == [703.0, 501.0, 504.0, 302.0]
    assert (
        dataset.region_mask(np.array([0])) is None and dataset.region_boxes(np.array([0])) is None
    )
    assert dataset.photos[8].file == "1002"


def test_ids_may_be_given_for_each_caption_where_rows_are_for_each_photo(tmp_path):
    write_split(tmp_path, "train", photos=3, each=2)
    (tmp_path / "train_ids.txt").write_text("7\n7\n8\n8\n9\n9\n")
    assert [p.file for p in PrecompDataset(tmp_path).photos] == ["7", "8", "9"]


def test_photos_of_the_redundant_layout_may_have_any_number_of_captions(tmp_path):
    write_split(tmp_path, "test", photos=2, each=3, redundant=True)
    (tmp_path / "test_ids.txt").write_text("7\n7\n8\n8\n8\n8\n")
    dataset = PrecompDataset(tmp_path)
    assert [len(p.captions) for p in dataset.photos] == [2, 4]
    assert dataset.regions(np.array([0, 1]))[:, 0, 0].tolist() == [401.0, 401.0]
    assert dataset.photos[1].captions[0] == "photo 0 caption 2 ."


def test_dev_is_cut_to_its_first_5000_captions(tmp_path):
    write_split(tmp_path, "dev", photos=1014, each=5, regions=1, channels=2)
    assert len(PrecompDataset(tmp_path).photos_of("val")) == 1000
    assert len(PrecompDataset(tmp_path, whole_dev=True).photos_of("val")) == 1014


def test_a_big_file_is_not_read_into_memory(tmp_path):
    write_split(tmp_path, "train", photos=4, each=2)
    # A sparse file of 40 GB: reading it whole would be noticed.
    shape = (150_000, 36, 2048)
    array = np.lib.format.open_memmap(tmp_path / "train_ims.npy", "w+", np.float32, shape)
    array[149_999, 35, 2047] = 5
    array.flush()
    captions = "".join(f"caption {c}\n" for c in range(300_000))
    (tmp_path / "train_caps.txt").write_text(captions)
    (tmp_path / "train_ids.txt").unlink()
    dataset = PrecompDataset(tmp_path, channels=2048)
    assert isinstance(dataset._splits[0].regions, np.memmap)
    assert dataset.regions(np.array([3, 149_999])).sum() == 5
    (tmp_path / "train_ims.npy").unlink()


def test_masks_and_boxes_beside_the_regions_are_used(tmp_path):
    write_split(tmp_path, "train", photos=2)
    write_split(tmp_path, "test", photos=2)
    mask = np.array([[True] * 5, [True] * 2 + [False] * 3])
    np.save(tmp_path / "test_mask.npy", mask)
    np.save(tmp_path / "train_boxes.npy", np.zeros((2, 5, 4), np.float32))
    np.save(tmp_path / "test_boxes.npy", np.ones((2, 5, 4), np.float32))
    dataset = PrecompDataset(tmp_path)
    assert dataset.region_mask(np.array([3, 0])).tolist() == [mask[1].tolist(), [True] * 5]
    assert dataset.region_boxes(np.array([3, 0]))[:, 0, 0].tolist() == [1.0, 0.0]
    np.save(tmp_path / "test_mask.npy", mask[:, :3])
    with pytest.raises(ValueError, match=r"test_mask.npy has shape \(2, 3\), expected \(2, 5\)"):
        PrecompDataset(tmp_path)


def test_a_file_that_is_cut_short_is_named(tmp_path):
    write_split(tmp_path, "train")
    path = tmp_path / "train_ims.npy"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-100])
    message = rf"train_ims.npy is cut short: {size - 100} bytes found, {size} expected"
    with pytest.raises(ValueError, match=message):
        PrecompDataset(tmp_path)
    path.write_bytes(b"hello")
    with pytest.raises(ValueError, match="train_ims.npy is not an .npy file"):
        PrecompDataset(tmp_path)
    np.save(path, np.zeros((4, 5, 8), np.int64))
    with pytest.raises(ValueError, match="train_ims.npy holds int64"):
        PrecompDataset(tmp_path)


def test_wrong_sizes_are_named(tmp_path):
    write_split(tmp_path, "train")
    with pytest.raises(ValueError, match=r"train_ims.npy has shape \(4, 5, 8\), .* 2048\)"):
        PrecompDataset(tmp_path, channels=2048)
    (tmp_path / "train_caps.txt").write_text("a\n" * 13)
    with pytest.raises(ValueError, match="has 4 rows, train_caps.txt has 13 captions"):
        PrecompDataset(tmp_path)
    (tmp_path / "train_caps.txt").write_text("a\n" * 12)
    (tmp_path / "train_ids.txt").write_text("1\n2\n")
    with pytest.raises(ValueError, match=r"train_ids.txt has 2 lines, expected 4 \(rows\) or 12"):
        PrecompDataset(tmp_path)
    write_split(tmp_path, "test", channels=9)
    (tmp_path / "train_ids.txt").unlink()
    with pytest.raises(ValueError, match=r"shapes \[\(5, 8\), \(5, 9\)\]"):
        PrecompDataset(tmp_path)
    assert PrecompDataset(tmp_path, splits=("train",)).region_shape == (5, 8)
    with pytest.raises(FileNotFoundError, match="dev_ims.npy is missing"):
        PrecompDataset(tmp_path, splits=("val",))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty has no split"):
        PrecompDataset(tmp_path / "empty")


def test_captions_spoilt_by_python_3_are_refused(tmp_path):
    write_split(tmp_path, "train", photos=2, each=2)
    lines = ["b'two young guys .'", "b'a dog .'", 'b"a dog\'s tail ."', "b'a cat .'"]
    (tmp_path / "train_caps.txt").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"train_caps.txt: 4 of 4 captions .*str\(\) of bytes"):
        PrecompDataset(tmp_path)
    (tmp_path / "train_caps.txt").write_text("a dog\n\na cat\na cow\n")
    with pytest.raises(ValueError, match="train_caps.txt, line 2 is empty"):
        PrecompDataset(tmp_path)
    (tmp_path / "train_caps.txt").write_bytes(b"caf\xe9\na\nb\nc\n")
    with pytest.raises(ValueError, match="train_caps.txt is not UTF-8"):
        PrecompDataset(tmp_path)


def test_a_line_separator_inside_a_caption_does_not_part_it(tmp_path):
    write_split(tmp_path, "train", photos=1, each=2)
    (tmp_path / "train_caps.txt").write_text("a dog\u2028runs\nb flies\x0c home\n", "utf-8")
    assert PrecompDataset(tmp_path).num_captions == 2
