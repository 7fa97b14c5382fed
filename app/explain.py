"""python -m app.explain: why a photo and a caption match, as numbers or as a figure."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from app.explanation import encode_photo, explain
from app.figure import draw_explanation
from app.opening import add_engine_flags, open_engine
from app.retrieval import cut_note
from matching.command import run_command
from matching.files import replacing
from matching.image import open_photo


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m app.explain", description=__doc__)
    parser.add_argument("photo", type=Path)
    parser.add_argument("caption")
    parser.add_argument("--out", type=Path, help="write a figure (PNG)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_engine_flags(parser)
    arguments = parser.parse_args(argv)
    photo = open_photo(arguments.photo)
    engine = open_engine(arguments)
    explanation = explain(engine, encode_photo(engine, photo), arguments.caption)
    note = cut_note(explanation.caption)
    if note:
        print(f"note: {note}", file=sys.stderr)
    if arguments.out is not None:
        with replacing(arguments.out) as temporary:
            draw_explanation(photo, explanation).save(temporary, "PNG")
        print(f"{arguments.out} written", file=sys.stderr)
    if arguments.json:
        print(json.dumps(explanation.to_json(), ensure_ascii=False))
        return 0
    numbers = f"score {explanation.score:.3f}, probability {100 * explanation.probability:.1f} %"
    if explanation.word_gates is None or explanation.region_gates is None:
        print(f"{numbers}; {engine.description.scorer.title} has no gates")
        return 0
    print(f"{numbers}, mean region gate {explanation.region_gates.mean():.2f}")
    for word, gate in zip(explanation.caption.words, explanation.word_gates, strict=True):
        print(f"{gate:5.2f}  {'#' * round(30 * gate):30}  {word}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
