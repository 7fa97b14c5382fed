"""python -m app.gallery build | add | remove | check | info: galleries of one's own photos."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from app.gallery_builder import add_photos, build_gallery, remove_photos
from app.gallery_folder import Gallery
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
    for name, text in (("check", "read everything"), ("info", "say what it holds")):
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
    added, problems = change(arguments.source, arguments.folder, open_engine(arguments))
    for problem in problems:
        print(f"left out: {problem}", file=sys.stderr)
    document = {"gallery": str(arguments.folder), "added": added, "left_out": problems}
    text = f"{arguments.folder}: {added} photos added, {len(problems)} files left out"
    return 0, document, text


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
    gallery = Gallery(arguments.folder, open_engine(arguments))
    licences = Counter(item.licence or "not stated" for item in gallery.items)
    document = {
        "gallery": str(arguments.folder),
        "photos": len(gallery.items),
        "captions": len(gallery.captions),
        "model_sha256": gallery.model_sha256,
        "licences": dict(licences.most_common()),
    }
    listed = ", ".join(f"{name} {count}" for name, count in licences.most_common())
    text = (
        f"{arguments.folder}: {len(gallery.items)} photos, {len(gallery.captions)} captions, "
        f"model {gallery.model_sha256[:12]}\nlicences: {listed}"
    )
    return 0, document, text


_COMMANDS = {"build": _grow, "add": _grow, "remove": _remove, "check": _check, "info": _info}


if __name__ == "__main__":
    sys.exit(run_command(main))
