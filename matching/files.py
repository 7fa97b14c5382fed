"""Writing files so that a kill at any moment leaves either the old file or the new one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; renames it to `path` if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The same name every time: what a kill leaves behind is overwritten by the next run.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, document: Any) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")


def read_json(path: Path) -> Any:
    """Reads a JSON file; a missing or broken one is an error that names the file."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not readable JSON ({error}); make it again") from None


def write_array(path: Path, array: np.ndarray) -> None:
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.save(stream, array)


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
