"""The field's caption files."""

import json

import pytest

from matching.caption_files import main, read_any, read_coco, read_flickr, read_karpathy
from matching.captions import CaptionedPhoto, read_captions


def karpathy(path):
    def image(name, split, count, **more):
        sentences = [{"raw": f" {name}  says {i}.\n", "sentid": i} for i in range(count)]
        return {"filename": name, "split": split, "sentences": sentences, **more}

    images = [
        image("a.jpg", "restval", 7, filepath="val2014", cocoid=3),
        image("b.jpg", "val", 2),
        image("c.jpg", "test", 5),
    ]
    path.write_text(json.dumps({"images": images}))
    return path


def test_karpathy_splits(tmp_path):
    path = karpathy(tmp_path / "dataset_coco.json")
    photos = read_karpathy(path)
    assert [(p.file, p.split, len(p.captions)) for p in photos] == [
        ("val2014/a.jpg", "train", 5),
        ("b.jpg", "val", 2),
        ("c.jpg", "test", 5),
    ]
    assert photos[1].captions == ("b.jpg says 0.", "b.jpg says 1.")
    assert len(read_karpathy(path, all_captions=True)[0].captions) == 7
    path.write_text('{"images": [{"filename": "a.jpg", "split": "val"}]}')
    with pytest.raises(ValueError, match=r"dataset_coco.json, image 0: .*'sentences' is missing"):
        read_karpathy(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="has no list 'images'"):
        read_karpathy(path)


def test_coco_annotations(tmp_path):
    path = tmp_path / "captions_val2014.json"
    images = [{"id": 7, "file_name": "x.jpg"}, {"id": 3, "file_name": "y.jpg"}]
    pairs = [(3, "a cat"), (7, "a dog"), (3, "a grey cat"), *[(7, f"dog {i}") for i in range(6)]]
    annotations = [{"image_id": i, "caption": c, "id": n} for n, (i, c) in enumerate(pairs)]
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    photos = read_coco(path, "val")
    assert photos[1] == CaptionedPhoto("y.jpg", "val", ("a cat", "a grey cat"))
    assert photos[0].captions == ("a dog", "dog 0", "dog 1", "dog 2", "dog 3")
    assert len(read_coco(path, "val", all_captions=True)[0].captions) == 7
    annotations[0]["image_id"] = 99
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    with pytest.raises(ValueError, match=r"captions_val2014.json: .*\(99 is missing\)"):
        read_coco(path, "val")


@pytest.mark.parametrize(
    "text",
    [
        "a.jpg#0\tA dog, big\nb.jpg#0\tTwo cats\na.jpg#1\tA pet #1\n",
        'image,caption\na.jpg,"A dog, big"\nb.jpg,Two cats\na.jpg,A pet #1\n',
        "image,caption\na.jpg,A dog, big\nb.jpg,Two cats\na.jpg,A pet #1\n",
        "image_name| comment_number| comment\na.jpg| 0| A dog, big\nb.jpg| 0| Two cats\n"
        "a.jpg| 1   A pet #1\n",
    ],
)
def test_flickr_files(tmp_path, text):
    path = tmp_path / "captions.txt"
    path.write_text(text)
    assert read_flickr(path, "train") == [
        CaptionedPhoto("a.jpg", "train", ("A dog, big", "A pet #1")),
        CaptionedPhoto("b.jpg", "train", ("Two cats",)),
    ]


def test_a_line_that_does_not_fit_is_named(tmp_path):
    path = tmp_path / "captions.txt"
    path.write_text("a.jpg#0\tA dog\nb.jpg Two cats\n")
    with pytest.raises(ValueError, match="captions.txt, line 2: 'photo.jpg#0"):
        read_flickr(path, "train")
    path.write_text("image,caption\n")
    with pytest.raises(ValueError, match="captions.txt has no captions"):
        read_flickr(path, "train")
    with pytest.raises(FileNotFoundError, match="none.json is missing"):
        read_any(tmp_path / "none.json")


def test_the_command_writes_what_training_reads(tmp_path, capsys):
    out = tmp_path / "captions.jsonl.gz"
    path = karpathy(tmp_path / "dataset.json")
    assert main([str(path), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "photos": 3, "captions": 12}
    assert read_captions(out) == read_karpathy(path)
    first = out.read_bytes()
    main([str(path), "--out", str(out)])
    assert out.read_bytes() == first
    assert "3 photos with 12 captions" in capsys.readouterr().out
