"""Where photos of a data set are read from: a folder, or a git directory without work tree."""

from __future__ import annotations

import argparse
import subprocess
import threading
from pathlib import Path
from typing import Protocol


def add_data_flags(parser: argparse.ArgumentParser) -> None:
    """What every command that reads the photos of a data set takes."""
    parser.add_argument("--captions", type=Path, required=True, help="captions, JSON lines (.gz)")
    parser.add_argument(
        "--photos", type=Path, required=True, help="folder of the photos, or a git directory"
    )


class PhotoSource(Protocol):
    def read(self, file: str) -> bytes: ...


class FolderPhotos:
    """Photos in a folder, named by their path inside it."""

    def __init__(self, folder: Path):
        self._folder = folder

    def read(self, file: str) -> bytes:
        path = self._folder / file
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: the captions name it")
        return path.read_bytes()


class GitPhotos:
    """Photos of the newest commit of a git directory, streamed without checking it out."""

    def __init__(self, git_directory: Path):
        self._git = ["git", "--git-dir", str(git_directory)]
        listing = subprocess.run(
            [*self._git, "ls-tree", "-r", "-z", "HEAD"],
            check=True,
            capture_output=True,
        ).stdout.decode("utf-8")
        rows = (row.split("\t", 1) for row in listing.split("\0") if row)
        self._blobs = {path: details.split()[2] for details, path in rows}
        self._reader = subprocess.Popen(
            [*self._git, "cat-file", "--batch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._lock = threading.Lock()

    def read(self, file: str) -> bytes:
        if file not in self._blobs:
            raise FileNotFoundError(f"{file} is not in {self._git[2]}: the captions name it")
        with self._lock:
            self._reader.stdin.write(self._blobs[file].encode() + b"\n")
            self._reader.stdin.flush()
            size = int(self._reader.stdout.readline().split()[2])
            return self._reader.stdout.read(size + 1)[:-1]


def open_photo_source(path: Path) -> PhotoSource:
    """A git directory if `path` is one, a folder otherwise."""
    if (path / "objects").is_dir() and (path / "HEAD").is_file():
        return GitPhotos(path)
    if path.is_dir():
        return FolderPhotos(path)
    raise FileNotFoundError(f"{path} is not a folder: give the folder that holds the photos")
