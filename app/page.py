"""The page: a caption finds photos, a photo finds captions and photos, a result shows why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import gradio as gr

from app.engine_choice import EngineChoice
from app.handlers import MOST_RESULTS, Handlers
from app.views import credit_of

EXAMPLES = [
    "an old castle on a hill",
    "a sunset over the sea",
    "snow covered mountains",
    "a tiger in the snow",
    "a hot air balloon in the sky",
    "a city skyline at night",
]
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
