"""What happens on the page's events: searches, choosing a result, switching the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gradio as gr
import numpy as np

from app.engine_choice import EngineChoice
from app.explanation import EncodedPhoto, encode_photo
from app.gallery_index import GalleryError
from app.retrieval import Found, Match, Timing
from app.views import (
    attention_top,
    caption_rows,
    gallery_lens,
    lens,
    photo_tiles,
    status_line,
)
from matching.engine_description import EngineError
from matching.image import PhotoError, open_photo
from matching.text import CaptionError

MOST_RESULTS = 40


@dataclass(frozen=True)
class CaptionSearch:
    """A search by caption, kept so that any of its results can be looked into."""

    engine: str
    text: str
    matches: list[Match]
    top: float  # end of the colour range


@dataclass(frozen=True)
class PhotoSearch:
    """A search by photo, likewise."""

    engine: str
    path: str
    photo: EncodedPhoto
    matches: list[Match]
    top: float


class Handlers:
    """What happens on the page's events."""

    def __init__(self, engines: EngineChoice):
        self._engines = engines

    def find_photos(self, text: str, count: float, engine: str) -> tuple:
        count = min(max(int(count), 1), MOST_RESULTS)  # the client's number: trust nothing
        with _explained():
            retriever = self._engines[engine]
            found = retriever.find_photos(text, count)
        photos = np.array([m.photo for m in found.matches])
        top = attention_top(retriever.engine, retriever.gallery.sides(photos), [text])
        search = CaptionSearch(engine, text, found.matches, top)
        with _explained():
            first = gallery_lens(retriever, found.matches[0], text, top)
        return (
            gr.Gallery(photo_tiles(found), selected_index=None),
            status_line(found, retriever.engine, "photos"),
            search,
            first,
        )

    def choose_photo(self, search: CaptionSearch | None, event: gr.SelectData) -> dict:
        if search is None or not isinstance(event.index, int):
            raise gr.Error("Search first, then choose a result.", print_exception=False)
        if not 0 <= event.index < len(search.matches):
            raise gr.Error(f"There is no result {event.index + 1}.", print_exception=False)
        match = search.matches[event.index]
        with _explained():
            return gallery_lens(self._engines[search.engine], match, search.text, search.top)

    def find_captions(self, path: str | None, engine: str) -> tuple:
        if path is None:
            return [], gr.Gallery([]), "", None, None
        timing = Timing()
        with _explained():
            retriever = self._engines[engine]
            with timing.measure("decoding"):
                picture = open_photo(Path(path))
        with timing.measure("image encoder"):
            photo = encode_photo(retriever.engine, picture)
        captions = retriever.find_captions(photo, 10)
        similar = retriever.find_similar(photo, 8)
        timing.milliseconds |= captions.timing.milliseconds
        status = status_line(
            Found(captions.matches, timing, captions.note),
            retriever.engine,
            "captions",
        )
        if not captions.matches:
            return [], gr.Gallery(photo_tiles(similar)), status, None, None
        texts = [m.caption for m in captions.matches]
        top = attention_top(retriever.engine, photo.side[None], texts)
        search = PhotoSearch(engine, path, photo, captions.matches, top)
        return (
            caption_rows(captions),
            gr.Gallery(photo_tiles(similar), selected_index=None),
            status,
            search,
            self._caption_lens(search, 0),
        )

    def choose_caption(self, search: PhotoSearch | None, event: gr.EventData) -> dict:
        index = event.index
        if search is None or not isinstance(index, int) or not 0 <= index < len(search.matches):
            raise gr.Error("Upload a photo first, then choose a caption.", print_exception=False)
        with _explained():
            return self._caption_lens(search, index)

    def switch_photos(self, text: str, count: float, engine: str, tab: str) -> tuple:
        """The search by caption once more, by another engine; the lens is the open tab's."""
        if not text.strip():
            return (gr.skip(),) * 4
        *found, why = self.find_photos(text, count, engine)
        return *found, why if tab == "photos" else gr.skip()

    def switch_captions(self, path: str | None, engine: str, tab: str) -> tuple:
        """The search by photo, likewise."""
        if path is None:
            return (gr.skip(),) * 5
        *found, why = self.find_captions(path, engine)
        return *found, why if tab == "captions" else gr.skip()

    def _caption_lens(self, search: PhotoSearch, index: int) -> dict:
        match = search.matches[index]
        heading = f"Caption {match.rank}, number {match.stage1_rank} of stage 1"
        return lens(
            self._engines[search.engine].engine,
            search.photo,
            open_photo(Path(search.path)),
            match.caption,
            search.top,
            heading,
            "Your photo; it is not kept longer than a day.",
        )


@contextmanager
def _explained() -> Iterator[None]:
    """Shows the message of an error that the person can do something about."""
    try:
        yield
    except (CaptionError, PhotoError, EngineError, GalleryError) as error:
        text = str(error)
        message = text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
        raise gr.Error(message, title="That did not work", print_exception=False) from None
