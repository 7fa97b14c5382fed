"""Runs the image backbone, or a part of it, over many photos, shard by shard, to disk.

Resumable: a shard that is on disk is kept, so a killed run loses one (about ten seconds).
"""

from __future__ import annotations

import itertools
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn
from tqdm import tqdm

from matching.features import PHOTOS_PER_SHARD
from matching.files import write_array
from matching.image import IMAGE_SIZE, open_photo, photo_pixels, pixel_batch
from matching.photos import PhotoSource

_PHOTOS_A_RUN = 8  # cache-sized: larger runs are slower on a CPU
_PHOTOS_AHEAD = 64  # decoded and waiting: bounds the memory


def write_photo_shards(
    network: nn.Module,
    files: list[str],
    source: PhotoSource,
    shard: Callable[[int], Path],
    mirrored: bool = False,
) -> None:
    """Writes what `network` makes of the pixels of each photo, fp16, PHOTOS_PER_SHARD a file."""
    parts = [files[i : i + PHOTOS_PER_SHARD] for i in range(0, len(files), PHOTOS_PER_SHARD)]
    missing = [index for index in range(len(parts)) if not shard(index).exists()]
    if not missing:
        return
    session = _session(network, torch.rand(2, 3, IMAGE_SIZE, IMAGE_SIZE) * 255)
    progress = tqdm(desc="photos", unit="photo", total=len(files))
    progress.update(len(files) - sum(len(parts[index]) for index in missing))
    pixels = _decoded_ahead(source, [file for index in missing for file in parts[index]])
    for index in missing:
        rows = []
        for start in range(0, len(parts[index]), _PHOTOS_A_RUN):
            count = min(_PHOTOS_A_RUN, len(parts[index]) - start)
            batch = pixel_batch(list(itertools.islice(pixels, count)))
            if mirrored:
                batch = np.ascontiguousarray(batch[..., ::-1])
            rows.append(session.run(None, {"photos": batch})[0].astype(np.float16))
            progress.update(count)
        write_array(shard(index), np.concatenate(rows))
    progress.close()


def write_shards_of_maps(
    upper: nn.Module,
    maps: Callable[[int], Path],
    shards: int,
    shard: Callable[[int], Path],
) -> None:
    """The same from maps that the lower part has left on disk."""
    session = None
    for index in tqdm(range(shards), "photos", unit="shard"):
        if shard(index).exists():
            continue
        rows = np.load(maps(index), mmap_mode="r")
        session = session or _session(upper, torch.rand(2, *rows.shape[1:]))
        runs = [
            session.run(None, {"photos": rows[i : i + _PHOTOS_A_RUN].astype(np.float32)})[0]
            for i in range(0, len(rows), _PHOTOS_A_RUN)
        ]
        write_array(shard(index), np.concatenate(runs).astype(np.float16))


def _session(network: nn.Module, example: torch.Tensor) -> onnxruntime.InferenceSession:
    """The same network in ONNX Runtime, which is four times as fast as torch on a CPU."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        torch.onnx.export(
            network,
            (example,),
            path,
            input_names=["photos"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("photos")},),
            dynamo=True,
            verbose=False,
        )
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def _decoded_ahead(source: PhotoSource, files: list[str]) -> Iterator[np.ndarray]:
    """Decodes photos in a thread, at most _PHOTOS_AHEAD of them before they are used."""
    ready: queue.Queue[np.ndarray | Exception] = queue.Queue(_PHOTOS_AHEAD)

    def decode() -> None:
        for file in files:
            try:
                ready.put(photo_pixels(open_photo(source.read(file), file)))
            except Exception as error:  # handed to the thread that waits for the photo
                ready.put(error)
                return

    threading.Thread(target=decode, daemon=True).start()
    for _ in files:
        item = ready.get()
        if isinstance(item, Exception):
            raise item
        yield item
