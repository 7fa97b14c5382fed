"""Words a person sees, their pieces, and captions that are too long or empty."""

from pathlib import Path

import numpy as np
import pytest

from matching.text import MAX_PIECES, MAX_WORDS, CaptionError, CaptionReader, caption_batch

TOKENIZER = Path(__file__).parents[2] / "engines" / "default" / "tokenizer.json"


@pytest.fixture(scope="module")
def reader() -> CaptionReader:
    return CaptionReader(TOKENIZER)


def test_words_are_as_written_without_punctuation(reader):
    caption = reader.read('A giraffe\'s "long" neck , near trees .')
    assert caption.words == ("A", "giraffe's", "long", "neck", "near", "trees")
    assert [caption.text[a:b] for a, b in caption.spans] == list(caption.words)
    assert not caption.cut


def test_endings_read_the_same(reader):
    ids = {reader.read(f"two dogs run{ending}").piece_ids for ending in ("", ".", " .", " !")}
    assert len(ids) == 1


def test_a_word_is_the_mean_of_its_pieces(reader):
    caption = reader.read("a skateboarder jumps")
    batch = caption_batch([caption, reader.read("dogs")])
    pieces = [i for i, word in enumerate(caption.piece_words) if word == 1]
    assert len(pieces) > 1
    expected = np.zeros(batch.word_pieces.shape[2], np.float32)
    expected[pieces] = 1 / len(pieces)
    np.testing.assert_allclose(batch.word_pieces[0, 1], expected)
    assert batch.word_mask.tolist() == [[True] * 3, [True, False, False]]


def test_long_captions_are_cut(reader):
    caption = reader.read("dog " * 2000)
    assert (len(caption.words), caption.words_found, caption.cut) == (MAX_WORDS, 2000, True)
    caption = reader.read("internationalization antidisestablishmentarianism " * 20)
    assert len(caption.piece_ids) <= MAX_PIECES and caption.cut
    assert caption.piece_ids[-1] == reader.read("dog").piece_ids[-1]  # [SEP]
    assert max(caption.piece_words) == len(caption.words) - 1


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "... !?", "\u200b"])
def test_a_caption_without_words_is_refused(reader, text):
    with pytest.raises(CaptionError, match="no words"):
        reader.read(text)


def test_any_script_is_read(reader):
    assert len(reader.read("狗 в снегу 🐕 <script>alert(1)</script>").words) == 5
