"""The page: a caption finds photos, a photo finds captions and photos, a result shows why."""

from __future__ import annotations

from collections import Counter
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
    credit_of,
    gallery_lens,
    lens,
    photo_tiles,
    status_line,
)
from matching.engine_description import EngineError
from matching.image import PhotoError, open_photo
from matching.text import CaptionError

EXAMPLES = [
    "a black dog in the forest",
    "a sunset over the sea",
    "snow covered mountains",
    "a tiger in the snow",
    "a hot air balloon in the sky",
    "a city skyline at night",
]
MOST_RESULTS = 40
_STATIC = Path(__file__).parent / "static"
_CSS = """
.gradio-container { max-width: 1240px !important; margin: 0 auto !important; }
#title h1 { margin-bottom: 0; }
#photos .grid-wrap, #similar .grid-wrap {
  min-height: 0 !important; max-height: none !important; height: auto !important;
}
#photos .caption-label, #similar .caption-label {
  font-size: .75rem; font-variant-numeric: tabular-nums; max-width: calc(100% - 8px);
  padding: 2px 6px; right: 4px; bottom: 4px;
}
@media (max-width: 640px) {
  .gradio-container { padding: 8px !important; }
  #photos .grid-container, #similar .grid-container {
    grid-template-columns: repeat(2, minmax(0, 1fr)) !important;
  }
}
"""
# On a phone the lens is below the results: bring it into view when a result is chosen.
_SHOW_LENS = """() => {
  if (window.innerWidth < 700) document.querySelector("#why").scrollIntoView({behavior: "smooth"});
}"""


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


def _component(name: str, elem_id: str, **arguments: object) -> gr.HTML:
    return gr.HTML(
        html_template=f'<div class="{name}"></div>',
        css_template=(_STATIC / f"{name}.css").read_text("utf-8"),
        js_on_load=(_STATIC / f"{name}.js").read_text("utf-8"),
        elem_id=elem_id,
        **arguments,
    )


def make_page(engines: EngineChoice) -> gr.Blocks:
    handlers = Handlers(engines)
    gallery = engines.first.gallery
    with gr.Blocks(title="CampLens", delete_cache=(3600, 86400)) as page:
        gr.Markdown(
            "# CampLens\nType a caption or upload a photo; see what matches in "
            f"{len(gallery.items):,} photos, **and why**.",
            elem_id="title",
        )
        tab = gr.State("photos")
        with gr.Row():
            with gr.Column(scale=6, min_width=320):
                with gr.Tab("Find photos") as photo_tab:
                    photo_parts = _photo_tab()
                with gr.Tab("Find captions") as caption_tab:
                    caption_parts = _caption_tab()
                options = _options(engines)
            with gr.Column(scale=5, min_width=320):
                why = _component("lens", "why")
        photo_tab.select(lambda: "photos", None, tab, api_name=False, show_progress="hidden")
        caption_tab.select(lambda: "captions", None, tab, api_name=False, show_progress="hidden")
        _wire_photos(handlers, photo_parts, options, tab, why)
        _wire_captions(handlers, caption_parts, options, tab, why)
        _credits(engines)
    return page


def _options(engines: EngineChoice) -> dict:
    with gr.Accordion("Options", open=False):
        count = gr.Slider(4, MOST_RESULTS, value=12, step=4, label="Photos found", elem_id="count")
        engine = gr.Dropdown(
            engines.names,
            value=engines.names[0],
            label="Engine",
            info="Stage 1 + scorer",
            visible=len(engines.names) > 1,
            filterable=False,
            elem_id="engine",
        )
    return {"count": count, "engine": engine}


def _photo_tab() -> dict:
    with gr.Row():
        caption = gr.Textbox(
            label="Caption",
            placeholder="what the photo should show",
            lines=1,
            max_length=20_000,
            max_lines=3,
            scale=5,
            autofocus=True,
            elem_id="caption",
        )
        button = gr.Button("Search", variant="primary", scale=1, min_width=90, elem_id="search")
    examples = gr.Dataset(
        components=[caption],
        samples=[[text] for text in EXAMPLES],
        label="Examples",
        elem_id="examples",
    )
    status = gr.Markdown(elem_id="status")
    photos = gr.Gallery(
        label="Photos, best first",
        columns=4,
        allow_preview=False,
        object_fit="cover",
        height="auto",
        elem_id="photos",
        show_label=False,
        buttons=[],
    )
    search = gr.State(None)
    return locals()


def _caption_tab() -> dict:
    upload = gr.Image(
        label="Your photo",
        type="filepath",
        image_mode=None,
        sources=["upload", "clipboard"],
        height=220,
        elem_id="upload",
    )
    status = gr.Markdown(elem_id="caption-status")
    captions = _component("captions", "captions")
    gr.Markdown("**Similar photos** of the gallery (stage 1 alone)")
    similar = gr.Gallery(
        label="Similar photos",
        show_label=False,
        columns=4,
        allow_preview=False,
        object_fit="cover",
        height="auto",
        elem_id="similar",
        buttons=[],
    )
    search = gr.State(None)
    return locals()


def _wire_photos(
    handlers: Handlers,
    parts: dict,
    options: dict,
    tab: gr.State,
    why: gr.HTML,
) -> None:
    outputs = [parts["photos"], parts["status"], parts["search"], why]
    inputs = [parts["caption"], options["count"], options["engine"]]
    gr.on(
        [parts["caption"].submit, parts["button"].click],
        handlers.find_photos,
        inputs,
        outputs,
        trigger_mode="always_last",
        api_name="find_photos",
        show_progress="minimal",
    )
    gr.on(
        [options["count"].release, options["engine"].input],
        handlers.switch_photos,
        [*inputs, tab],
        outputs,
        trigger_mode="always_last",
        api_name=False,
        show_progress="minimal",
    )
    parts["examples"].click(
        lambda sample: sample[0],
        parts["examples"],
        parts["caption"],
        api_name=False,
    ).then(handlers.find_photos, inputs, outputs, api_name=False, show_progress="minimal")
    parts["photos"].select(
        handlers.choose_photo,
        parts["search"],
        why,
        api_name=False,
        show_progress="hidden",
    ).then(None, js=_SHOW_LENS)


def _wire_captions(
    handlers: Handlers,
    parts: dict,
    options: dict,
    tab: gr.State,
    why: gr.HTML,
) -> None:
    outputs = [parts["captions"], parts["similar"], parts["status"], parts["search"], why]
    inputs = [parts["upload"], options["engine"]]
    parts["upload"].change(
        handlers.find_captions,
        inputs,
        outputs,
        trigger_mode="always_last",
        api_name="find_captions",
        show_progress="minimal",
    )
    options["engine"].input(
        handlers.switch_captions,
        [*inputs, tab],
        outputs,
        trigger_mode="always_last",
        api_name=False,
        show_progress="minimal",
    )
    parts["captions"].select(
        handlers.choose_caption,
        parts["search"],
        why,
        api_name=False,
        show_progress="hidden",
    ).then(None, js=_SHOW_LENS)


def _credits(engines: EngineChoice) -> None:
    items = engines.first.gallery.items
    licences = Counter(item.licence or "not stated" for item in items)
    listed = " · ".join(f"{name} ({count})" for name, count in licences.most_common())
    with gr.Accordion("Photos, authors and licences", open=False):
        gr.Markdown(listed)
        gr.Dataframe(
            [[credit_of(item)] for item in items],
            headers=["Credit"],
            interactive=False,
            max_height=320,
            wrap=True,
        )
    first, *others = engines.names
    also = f" · under Options also {', '.join(others)}" if others else ""
    engine = engines.first.engine
    gr.Markdown(f"Engine: {engine.name} · model {engine.sha256[:12]}{also}")


def launch_page(engines: EngineChoice, host: str, port: int) -> None:
    """Warms up, serves the page and waits."""
    handlers = Handlers(engines)
    # The first run of a graph is slow: not a person's.
    handlers.find_photos(EXAMPLES[0], 12, engines.names[0])
    make_page(engines).queue(max_size=64).launch(
        server_name=host,
        server_port=port,
        css=_CSS,
        theme=gr.themes.Soft(primary_hue="purple", font=["system-ui", "sans-serif"]),
        allowed_paths=[str(engines.first.gallery.folder.resolve())],
        max_file_size="20mb",
        show_error=False,
        footer_links=[],
        run_history=False,
    )
