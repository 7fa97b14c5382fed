"""Weights in one file, or above PART_BYTES in parts: NAME.0, NAME.1, ... hold its bytes.

For hosts that keep large files apart (Hugging Face Spaces from 10 MB on).
"""

from __future__ import annotations

from pathlib import Path

from matching.files import replacing

PART_BYTES = 9_000_000


def write_parts(path: Path, content: bytes) -> None:
    """One file, or parts of it; what an earlier write left behind goes."""
    parts = [content[i : i + PART_BYTES] for i in range(0, len(content), PART_BYTES)]
    names = [path.name] if len(parts) == 1 else [f"{path.name}.{i}" for i in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        with replacing(path.parent / name) as temporary:
            temporary.write_bytes(part)
    for other in path.parent.glob(f"{path.name}*"):
        if other.name not in names:
            other.unlink()


def read_parts(path: Path) -> bytes:
    if path.exists():
        return path.read_bytes()
    parts = sorted(path.parent.glob(f"{path.name}.*"), key=lambda part: int(part.suffix[1:]))
    if not parts:
        raise FileNotFoundError(f"{path} is missing")
    return b"".join(part.read_bytes() for part in parts)
