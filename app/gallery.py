"""python -m app.gallery build | add | encode | remove | check | info: galleries of photos."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from app.gallery_builder import add_photos, build_gallery, remove_photos
from app.gallery_encoder import add_encodings
from app.gallery_folder import Gallery, read_items
from app.gallery_index import Index
from app.opening import add_engine_flags, open_engine
from matching.command import run_command
from matching.image import PhotoError, open_photo


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m app.gallery", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="make a gallery of all photos below a folder")
    build.add_argument("source", type=Path, metavar="DIR")
    build.add_argument("--out", type=Path, required=True, dest="folder", metavar="G")
    add = commands.add_parser("add", help="add the photos of a folder that are not there yet")
    add.add_argument("source", type=Path, metavar="DIR")
    add.add_argument("--to", type=Path, required=True, dest="folder", metavar="G")
    remove = commands.add_parser("remove", help="take photos out")
    remove.add_argument("ids", nargs="+", metavar="ID")
    remove.add_argument("--from", type=Path, required=True, dest="folder", metavar="G")
    for name, text in (
        ("encode", "add what another engine needs, from the photos of the gallery"),
        ("check", "read everything"),
        ("info", "say what it holds"),
    ):
        commands.add_parser(name, help=text).add_argument("folder", type=Path, metavar="G")
    for command in commands.choices.values():
        add_engine_flags(command)
        command.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    code, document, text = _COMMANDS[arguments.command](arguments)
    print(json.dumps(document, ensure_ascii=False) if arguments.json else text)
    return code


def _grow(arguments: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    change = build_gallery if arguments.command == "build" else add_photos
    growth = change(arguments.source, arguments.folder, open_engine(arguments))
    for problem in growth.left_out:
        print(f"left out: {problem}", file=sys.stderr)
    if growth.dropped:
        print(
            f"note: the new photos are not encoded by {', '.join(growth.dropped)}, which "
            f"{arguments.folder} was encoded by, too; python -m app.gallery encode "
            f"{arguments.folder} --engine E makes it so again, for each of the engines",
            file=sys.stderr,
        )
    document = {
        "gallery": str(arguments.folder),
        "added": growth.added,
        "left_out": list(growth.left_out),
        "dropped": list(growth.dropped),
    }
    count = len(growth.left_out)
    return 0, document, f"{arguments.folder}: {growth.added} photos added, {count} files left out"


def _encode(arguments: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    added = add_encodings(arguments.folder, open_engine(arguments))
    document = {"gallery": str(arguments.folder), "added": added}
    text = f"encoded by {' and '.join(added)}" if added else "already encoded by that engine"
    return 0, document, f"{arguments.folder}: {text}"


def _remove(arguments: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    remove_photos(arguments.folder, arguments.ids)
    document = {"gallery": str(arguments.folder), "removed": arguments.ids}
    return 0, document, f"{arguments.folder}: {len(arguments.ids)} photos removed"


def _check(arguments: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    gallery = Gallery(arguments.folder, open_engine(arguments))
    problems = []
    for photo, item in enumerate(gallery.items):
        try:
            open_photo(gallery.photo_path(photo), item.id)
        except PhotoError as error:
            problems.append(str(error))
    document = {
        "gallery": str(arguments.folder),
        "photos": len(gallery.items),
        "problems": problems,
    }
    text = "\n".join(
        [*problems, f"{arguments.folder}: {len(gallery.items)} photos, {len(problems)} problems"]
    )
    return (1 if problems else 0), document, text


def _info(arguments: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    index = Index.read(arguments.folder)
    items = [item for part in index.parts for item in read_items(arguments.folder, part)]
    items = [item for item in items if item.id not in index.removed]
    captions = sum(len(item.captions) for item in items)
    licences = Counter(item.licence or "not stated" for item in items)
    encodings = {
        kind: [{"title": e.title, "key": e.key, "shape": e.shape} for e in listed]
        for kind, listed in (("stage1", index.stage1), ("scorer", index.scorer))
    }
    document = {
        "gallery": str(arguments.folder),
        "photos": len(items),
        "captions": captions,
        "encodings": encodings,
        "licences": dict(licences.most_common()),
    }
    titles = {
        kind: ", ".join(f"{e['title']} ({e['key'][:12]})" for e in listed)
        for kind, listed in encodings.items()
    }
    listed = ", ".join(f"{name} {count}" for name, count in licences.most_common())
    text = (
        f"{arguments.folder}: {len(items)} photos, {captions} captions\n"
        f"stage 1: {titles['stage1']}\nscorers: {titles['scorer']}\nlicences: {listed}"
    )
    return 0, document, text


_COMMANDS = {
    "build": _grow,
    "add": _grow,
    "encode": _encode,
    "remove": _remove,
    "check": _check,
    "info": _info,
}


if __name__ == "__main__":
    sys.exit(run_command(main))
