"""Flags and opening of engine and gallery, the same for every command."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from app.engine_choice import EngineChoice, fitting_engines
from app.gallery_folder import Gallery
from app.retrieval import Retriever
from matching.engine import BACKENDS, Engine
from matching.engine_description import DEFAULT_ENGINE

ROOT = Path(__file__).resolve().parent.parent


def default_path(*parts: str) -> Path:
    """A folder of this project, as it is called from the folder that the person is in."""
    return Path(os.path.relpath(ROOT.joinpath(*parts)))


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        type=Path,
        default=default_path(*DEFAULT_ENGINE.parts),
        help="engine folder",
    )
    _add_backend_flag(parser)


def add_engines_flags(parser: argparse.ArgumentParser) -> None:
    """For the page, which offers a choice of engines."""
    parser.add_argument(
        "--engine",
        type=Path,
        action="append",
        dest="engines",
        metavar="ENGINE",
        help="engine folder; may be given several times (default: the default engine and all "
        "beside it that the gallery is encoded by)",
    )
    _add_backend_flag(parser)


def _add_backend_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=["auto", *BACKENDS],
        default="auto",
        help="what ONNX Runtime runs on",
    )


def add_gallery_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gallery",
        type=Path,
        default=default_path("gallery", "default"),
        help="gallery folder",
    )


def positive(text: str) -> int:
    """An argparse type: a whole number above zero."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above zero")
    return number


def open_engine(arguments: argparse.Namespace) -> Engine:
    return Engine(arguments.engine, arguments.backend)


def open_retriever(arguments: argparse.Namespace) -> Retriever:
    engine = open_engine(arguments)
    return Retriever(engine, Gallery(arguments.gallery, engine))


def open_engine_choice(arguments: argparse.Namespace) -> EngineChoice:
    """The engines that were named, or those of this project that fit the gallery."""
    gallery, backend = arguments.gallery, arguments.backend
    if arguments.engines:
        return EngineChoice(gallery, arguments.engines, backend)
    default = default_path(*DEFAULT_ENGINE.parts)
    return EngineChoice(gallery, fitting_engines(gallery, default), backend)
