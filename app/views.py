"""What the page shows of a result, as plain values: no Gradio, no HTML."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from app.explanation import (
    EncodedPhoto,
    Explanation,
    attention_of,
    cell_map,
    explain,
    shares_of_words,
)
from app.gallery_folder import Item
from app.retrieval import Found, Match, Retriever
from matching.encoded import pad_captions
from matching.engine import Engine
from matching.image import open_photo

_PHOTO_SIDE = 640
# What the map of a word is called. SCAN (i2t) has the attention of regions alone.
_MAP_OF = {"words": "attention of", "regions": "regions that look at", None: ""}


def likeliness(match: Match) -> str:
    """The number under a result."""
    if match.probability is None:
        return "stage 1 alone"
    return f"{100 * match.probability:.0f} %" if match.probability >= 0.01 else "< 1 %"


def photo_tiles(found: Found) -> list[tuple[str, str]]:
    """Path and label of each photo, for a gallery of photos."""
    return [(m.path, f"{m.rank} · {_short(m)}") for m in found.matches]


def _short(match: Match) -> str:
    if match.probability is None:
        return f"{match.score:.2f}"
    return f"{match.score:.1f} · {likeliness(match)}"


def caption_rows(found: Found) -> list[dict[str, Any]]:
    return [
        {"rank": m.rank, "caption": m.caption, "likely": likeliness(m), "score": f"{m.score:.2f}"}
        for m in found.matches
    ]


def status_line(found: Found, engine: Engine, what: str) -> str:
    """How long each stage took and on what engine; then what the person should know."""
    total = sum(found.timing.milliseconds.values())
    parts = [f"{len(found.matches)} {what} in **{total:.0f} ms** ({found.timing}) · {engine.name}"]
    if found.note:
        parts.append(f"**Note:** {found.note}")
    return "  \n".join(parts)


def attention_top(engine: Engine, photos: np.ndarray, texts: list[str]) -> float:
    """The largest attention of all pairs of a query: the end of its one colour range."""
    whose = attention_of(engine)
    if whose is None:
        return 1.0
    _, sides = engine.encode_captions([engine.captions.read(text) for text in texts])
    captions, mask = pad_captions(sides)
    if whose == "words":
        attention = engine.score_grid(photos, captions, mask, ("word_attention",))[0]
    else:
        looks = engine.score_grid(photos, captions, mask, ("region_attention",))[0]
        attention = shares_of_words(looks)
    words = mask[None, :, engine.extra_positions :, None]
    return max(float(np.where(words, attention, 0).max()), 1e-6)


def lens(
    engine: Engine,
    photo: EncodedPhoto,
    picture: Image.Image,
    text: str,
    top: float,
    heading: str,
    credit: str,
) -> dict[str, Any]:
    """Everything that app/static/lens.js draws of one pair; no further trip to the server."""
    explanation = explain(engine, photo, text)
    attention, gates = explanation.word_attention, explanation.region_gates
    scorer = engine.description.scorer.title
    return {
        "heading": heading,
        "photo": _data_url(picture),
        "caption": explanation.caption.text[: explanation.caption.spans[-1][1] + 40],
        "words": _words(explanation),
        "whole": None if attention is None else _cells(attention.max(0)),
        "regions": None if gates is None else _cells(gates),
        "top": round(top, 4),
        # What the map of a word is called; SCAN (i2t) has the attention of regions alone.
        "map_of": "regions that look at"
        if explanation.attention_of == "regions"
        else "attention of",
        "hint": _hint(explanation, scorer),
        "numbers": (
            f"probability {100 * explanation.probability:.1f} % · score {explanation.score:.2f} = "
            f"{scorer} {explanation.logit:.2f} + {engine.ranking.stage1_weight:g} × "
            f"{_stage1(engine, explanation)}"
        ),
        "credit": credit,
    }


def _stage1(engine: Engine, explanation: Explanation) -> str:
    similarity = f"stage 1 {explanation.stage1_score:.3f}"
    if not engine.popularity:
        return similarity
    return f"({similarity} − popularity {explanation.popularity:.3f})"


def _words(explanation: Explanation) -> list[dict[str, Any]]:
    """Where each word stands, its gate and its map; None where the scorer has none."""
    attention, gates = explanation.word_attention, explanation.word_gates
    return [
        {
            "start": start,
            "end": end,
            "gate": None if gates is None else round(float(gates[n]), 4),
            "map": None if attention is None else _cells(attention[n]),
        }
        for n, (start, end) in enumerate(explanation.caption.spans)
    ]


def _hint(explanation: Explanation, scorer: str) -> str:
    """How the lens is read."""
    look = {
        "words": "Point at a word to see where it looks.",
        "regions": f"In {scorer} regions look at words: point at a word to see which of them do.",
        None: f"{scorer} in this form has no attention to show.",
    }[explanation.attention_of]
    if explanation.word_gates is None:
        gates = f"{scorer} has no gates, so no word is shaded."
    else:
        gates = "The darker a word, the more open its gate."
    proof = "Attention shows what the model read, not a proof of why."
    return " ".join([look, gates] + ([proof] if explanation.attention_of else []))


def gallery_lens(
    retriever: Retriever,
    match: Match,
    text: str,
    top: float,
) -> dict[str, Any]:
    """The lens of a gallery photo with a caption."""
    photo = retriever.gallery_photo(match.photo)
    picture = open_photo(Path(match.path), match.id)
    heading = f"Result {match.rank}, number {match.stage1_rank} of stage 1"
    return lens(
        retriever.engine,
        photo,
        picture,
        text,
        top,
        heading,
        credit_of(retriever.gallery.items[match.photo]),
    )


def credit_of(item: Item) -> str:
    parts = [
        f"Photo {item.id.rsplit('/', 1)[-1]}",
        item.author and f"by {item.author}",
        item.licence,
        item.source,
    ]
    return ", ".join(part for part in parts if part)


def _cells(values: np.ndarray) -> list[list[float]]:
    return np.round(cell_map(values).astype(np.float64), 4).tolist()


def _data_url(picture: Image.Image) -> str:
    small = picture.copy()
    small.thumbnail((_PHOTO_SIDE, _PHOTO_SIDE))
    stream = io.BytesIO()
    small.save(stream, "JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
