"""Words and their numbers."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

from matching.vocabulary import MASK, Vocabulary, tokenise


class Published:
    """Pickled under the name that the authors' scripts had: __main__.Vocabulary."""


def published_pickle(words, module, protocol):
    """A pickle that names `module`.Vocabulary, as it was written by another program."""
    numbers = {word: number for number, word in enumerate(words)}
    record = Published()
    record.__dict__ = {"word2idx": numbers, "idx2word": dict(enumerate(words)), "idx": len(words)}
    text = pickle.dumps(record, protocol)
    return text.replace(f"c{__name__}\nPublished\n".encode(), f"c{module}\nVocabulary\n".encode())


WORDS = ["<pad>", "<start>", "<end>", "<unk>", "a", "dog", "."]


@pytest.mark.parametrize(
    ("caption", "tokens"),
    [
        ("The dog's tail isn't long.", ["the", "dog", "'s", "tail", "is", "n't", "long", "."]),
        ("Two dogs' bones, red & big!", ["two", "dogs", "'", "bones", ",", "red", "&", "big", "!"]),
        (
            'A "nike" t-shirt (left)',
            ["a", "``", "nike", "''", "t-shirt", "(", "left", ")"],
        ),
        ("5,000 ft. at 5:30 p.m.", ["5,000", "ft.", "at", "5:30", "p.m", "."]),
        ("A man runs. He can't stop", ["a", "man", "runs", ".", "he", "ca", "n't", "stop"]),
        ("he 's cannot ...", ["he", "'s", "can", "not", "..."]),
        ("  ", []),
    ],
)
def test_captions_fall_into_treebank_tokens(caption, tokens):
    assert tokenise(caption) == tokens


def test_words_are_ordered_by_count_then_alphabet():
    captions = ["b b a a c", "c d e e e", "e rare"]
    vocabulary = Vocabulary.build(captions, least_count=2)
    assert vocabulary.words == ("<pad>", "<start>", "<end>", "<unk>", "e", "a", "b", "c")
    assert Vocabulary.build(reversed(captions), least_count=2) == vocabulary
    assert Vocabulary.build(captions, 2, with_mask=True).words[-1] == MASK
    assert vocabulary.with_mask().numbers[MASK] == 8


def test_a_batch_is_padded_and_unknown_words_are_marked():
    vocabulary = Vocabulary({word: number for number, word in enumerate(WORDS)})
    batch = vocabulary.batch(["A dog.", "dog", "a zebra a dog"], max_words=3)
    assert batch.dtype == np.int64
    assert batch.tolist() == [[1, 4, 5, 6, 2], [1, 5, 2, 0, 0], [1, 4, 3, 4, 2]]


def test_the_published_json_form_is_written_and_read(tmp_path):
    vocabulary = Vocabulary.build(["a dog . a dog . a dog . a dog ."])
    vocabulary.save(tmp_path / "vocab.json")
    document = json.loads((tmp_path / "vocab.json").read_text())
    assert document["idx2word"]["4"] == "."  # published files have text as keys, too
    assert document["idx"] == len(vocabulary) == 7
    again = Vocabulary.load(tmp_path / "vocab.json")
    assert again.words == vocabulary.words and again.sha256 == vocabulary.sha256
    assert again.sha256 != vocabulary.with_mask().sha256


@pytest.mark.parametrize("protocol", [0, 1, 2, 3])
@pytest.mark.parametrize("module", ["__main__", "vocab"])
def test_published_pickles_are_read(tmp_path, module, protocol):
    path = tmp_path / "f30k_precomp_vocab.pkl"
    path.write_bytes(published_pickle(WORDS, module, protocol))
    assert Vocabulary.load(path).words == tuple(WORDS)


def test_a_pickle_of_python_2_is_read(tmp_path):
    text = b"\x80\x02c__main__\nVocabulary\n)\x81}(U\x08word2idx}("
    for number, word in enumerate([*(w.encode() for w in WORDS[:6]), b"caf\xe9"]):
        text += b"U" + bytes([len(word)]) + word + b"K" + bytes([number])
    path = tmp_path / "vocab.pkl"
    path.write_bytes(text + b"uU\x03idxK\x07ub.")
    assert Vocabulary.load(path).words == (*WORDS[:6], "café")


def test_a_vocabulary_that_does_not_fit_is_named(tmp_path):
    path = tmp_path / "f30k.json"
    Vocabulary({word: number for number, word in enumerate(WORDS)}).save(path)
    with pytest.raises(ValueError, match=r"f30k.json has 7 words, c.pth has 8,590 rows: give the"):
        Vocabulary.load(path).require_size(8590, "c.pth")
    path.write_text('{"word2idx": {"<pad>": 1, "<start>": 0, "<end>": 2, "<unk>": 3}}')
    with pytest.raises(ValueError, match=r"f30k.json: <pad>, .* numbers \(1, 0, 2, 3\)"):
        Vocabulary.load(path)
    path.write_text('{"word2idx": {"<pad>": 0, "<start>": 1, "<end>": 2, "<unk>": 3, "a": 9}}')
    with pytest.raises(ValueError, match="are not 0 to 4"):
        Vocabulary.load(path)
    path.write_text("[1]")
    with pytest.raises(ValueError, match="has no word2idx"):
        Vocabulary.load(path)
    with pytest.raises(FileNotFoundError, match="none.pkl is missing"):
        Vocabulary.load(tmp_path / "none.pkl")


def test_no_torch_is_needed():
    code = "import sys, matching.vocabulary; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
