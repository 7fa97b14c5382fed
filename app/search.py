"""python -m app.search: photos for a caption, captions or similar photos for a photo."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from app.explanation import encode_photo
from app.opening import add_engine_flags, add_gallery_flag, open_retriever, positive
from app.retrieval import Found, Retriever, Timing
from matching.command import run_command
from matching.image import open_photo


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m app.search", description=__doc__)
    query = parser.add_mutually_exclusive_group(required=True)
    query.add_argument("caption", nargs="?", help="what the photo should show")
    query.add_argument("--image", type=Path, help="a photo to find captions or photos for")
    query.add_argument("--queries", type=Path, help="a file of captions, one a line")
    parser.add_argument(
        "--find",
        choices=["captions", "photos"],
        default="captions",
        help="what to find for a photo",
    )
    parser.add_argument("-k", type=positive, default=10, help="how many results (default 10)")
    parser.add_argument("--no-rerank", action="store_true", help="stage 1 alone")
    parser.add_argument("--json", action="store_true", help="one JSON line a result")
    add_gallery_flag(parser)
    add_engine_flags(parser)
    arguments = parser.parse_args(argv)
    retriever = open_retriever(arguments)
    for number, found in _searches(arguments, retriever):
        if found.note:
            print(f"note: {found.note}", file=sys.stderr)
        for match in found.matches:
            if arguments.json:
                line = {} if number is None else {"query": number}
                print(json.dumps({**line, **match.to_json()}, ensure_ascii=False))
            else:
                query_number = "" if number is None else f"{number}: "
                likely = "" if match.probability is None else f"{100 * match.probability:5.1f} %  "
                print(
                    f"{query_number}{match.rank:3}  {match.score:8.3f}  {likely}{match.path}"
                    f"  {match.caption or ''}"
                )
        print(f"{found.timing} on {retriever.engine.name}", file=sys.stderr)
    return 0


def _searches(
    arguments: argparse.Namespace,
    retriever: Retriever,
) -> Iterator[tuple[int | None, Found]]:
    rerank = not arguments.no_rerank
    if arguments.image is not None:
        timing = Timing()
        with timing.measure("image encoder"):
            query = encode_photo(retriever.engine, open_photo(arguments.image))
        if arguments.find == "captions":
            found = retriever.find_captions(query, arguments.k, rerank)
        else:
            found = retriever.find_similar(query, arguments.k)
        timing.milliseconds |= found.timing.milliseconds
        yield None, Found(found.matches, timing, found.note)
    elif arguments.queries is not None:
        for number, text in enumerate(_lines(arguments.queries), 1):
            if text.strip():
                yield number, retriever.find_photos(text, arguments.k, rerank)
    else:
        yield None, retriever.find_photos(arguments.caption, arguments.k, rerank)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist: give a file of captions") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text: one caption a line is expected") from None


if __name__ == "__main__":
    sys.exit(run_command(main))
