"""Every engine of this repository works with the default gallery as it is."""

from pathlib import Path

import pytest

from app.engine_choice import fitting_engines
from app.explanation import encode_photo, explain
from app.gallery_folder import Gallery
from app.retrieval import Retriever
from matching.engine import Engine
from matching.image import open_photo
from tests.app.conftest import ENGINE, GALLERY, ROOT

ENGINES = sorted(path.parent for path in (ROOT / "engines").glob("*/engine.json"))


@pytest.fixture(scope="module", params=ENGINES, ids=lambda folder: folder.name)
def retriever(request) -> Retriever:
    engine = Engine(request.param, "cpu")
    return Retriever(engine, Gallery(GALLERY, engine))


def test_three_pairs_are_ready_to_use():
    assert {folder.name for folder in ENGINES} >= {"small", "large", "default", "dive", "mmca"}
    assert fitting_engines(GALLERY, ENGINE) == [ENGINE, *(e for e in ENGINES if e != ENGINE)]
    systems = {Engine(folder, "cpu").description.stage1.system for folder in ENGINES}
    assert systems >= {"vse_infinity", "dive", "mmca"}


def test_a_caption_finds_its_photo_nearly_always_in_the_first_half(retriever):
    """A shuffled encoding would put the photo anywhere: half of the captions below the middle."""
    gallery = retriever.gallery
    captions = range(0, len(gallery.captions), 71)
    ranks = []
    for caption in captions:
        found = retriever.find_photos(gallery.captions[caption], len(gallery.items))
        photos = [match.photo for match in found.matches]
        ranks.append(photos.index(gallery.photo_of_caption[caption]))
    assert sum(rank < 47 for rank in ranks) >= 0.75 * len(ranks)  # a tenth of the photos


def test_a_photo_finds_captions_and_itself(retriever):
    photo = retriever.gallery_photo(7)
    assert retriever.find_similar(photo, 3).matches[0].photo == 7
    assert len(retriever.find_captions(photo, 5).matches) == 5


def test_a_pair_is_explained(retriever):
    engine = retriever.engine
    picture = open_photo(Path(retriever.gallery.photo_path(7)))
    explanation = explain(engine, encode_photo(engine, picture), "a dog in the snow")
    assert explanation.word_attention.shape == (5, 36)
    assert explanation.word_attention.sum(1) == pytest.approx([1] * 5, abs=1e-4)
    assert (explanation.word_gates is not None) == engine.has_gates


def test_no_file_needs_a_large_file_store():
    for folder in ENGINES:
        files = [p for p in folder.iterdir() if p.is_file()]
        assert max(p.stat().st_size for p in files) < 10e6
        assert sum(p.stat().st_size for p in files) < 65e6
