"""python -m export.benchmark: how much faster exact factored CAMP is than naive torch eager.

One caption against 1,000 photos on the CPU, the same threads, both in one process by turns. What is
per item (features, keys, for ours the sides) is made beforehand. `ours`: the engine's pair scorer
at its size; `paper`: d = 1024, 36 regions, 14 words, random weights. Not run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from export.graphs import DEFAULT_CHECKPOINT
from matching.checkpoint import load_checkpoint
from matching.command import run_command
from matching.config import CampConfig
from matching.contract import PAIR_OUTPUTS, graphs
from matching.image import NUM_REGIONS
from matching.models.camp import Camp
from matching.models.encoders import PairScorer

_PHOTOS = 1000
_PHOTOS_A_RUN = 16  # cache-sized for both


def compare(camp: Camp, words: int, threads: int, repeats: int) -> dict[str, float]:
    """Median seconds of both and their ratio; first proves that they score alike."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(_PHOTOS, NUM_REGIONS, camp.dimension, generator=generator)
    t = torch.randn(words, camp.dimension, generator=generator)
    with torch.inference_mode():
        image_sides = camp.photo_side_of(v).numpy()
        caption_side = camp.caption_side_of(t)[None].numpy()
    session = _session(camp, threads)
    mask = np.ones((1, words), bool)

    def naive() -> np.ndarray:
        with torch.inference_mode():
            parts = v.split(_PHOTOS_A_RUN)
            return torch.cat([camp.score_plainly(part, t).logit for part in parts]).numpy()

    def factored() -> np.ndarray:
        runs = [
            session.run(
                ["logit"],
                {
                    "image_side": image_sides[i : i + _PHOTOS_A_RUN],
                    "caption_side": caption_side,
                    "word_mask": mask,
                },
            )[0]
            for i in range(0, _PHOTOS, _PHOTOS_A_RUN)
        ]
        return np.concatenate(runs)[:, 0]

    difference = float(np.abs(naive() - factored()).max())
    seconds = {"naive": [], "factored": []}
    for _ in range(repeats):
        for name, run in (("naive", naive), ("factored", factored)):
            seconds[name].append(_seconds(run))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "dimension": camp.dimension,
        "words": words,
        "regions": NUM_REGIONS,
        "photos": _PHOTOS,
        "threads": threads,
        "naive_ms": round(1000 * medians["naive"], 1),
        "factored_ms": round(1000 * medians["factored"], 1),
        "speedup": round(medians["naive"] / medians["factored"], 2),
        "largest_difference": difference,
    }


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _session(camp: Camp, threads: int) -> onnxruntime.InferenceSession:
    width, spec = camp.side_width, graphs(0, PAIR_OUTPUTS)[-1]
    photos, captions, words = (
        torch.export.Dim(name, min=1, max=4096) for name in ("photos", "captions", "words")
    )
    example = (
        torch.randn(2, NUM_REGIONS, width),
        torch.randn(3, 5, width),
        torch.ones(3, 5, dtype=torch.bool),
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "pair_scorer.onnx"
        torch.onnx.export(
            PairScorer(camp),
            example,
            path,
            dynamo=True,
            verbose=False,
            opset_version=20,
            input_names=[t.name for t in spec.inputs],
            output_names=[t.name for t in spec.outputs],
            dynamic_shapes=({0: photos}, {0: captions, 1: words}, {0: captions, 1: words}),
        )
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m export.benchmark", description=__doc__)
    parser.add_argument("--scorer", type=Path, metavar="C", help="checkpoint of CAMP")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=DEFAULT_CHECKPOINT,
        metavar="C",
        help="stands for --scorer C/camp (default %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    folder = arguments.scorer or arguments.checkpoint / "camp"
    ours = load_checkpoint(folder, "scorer").model
    if not isinstance(ours, Camp):
        raise ValueError(f"{folder} is no CAMP: give a checkpoint of CAMP")
    paper = Camp(CampConfig(dimension=1024, key_dimension=1024)).eval()
    rows = {
        name: compare(camp, words, arguments.threads, arguments.repeats)
        for name, camp, words in (("ours", ours, 11), ("paper", paper, 14))
    }
    speedup = {name: row["speedup"] for name, row in rows.items()}
    if arguments.json:
        listed = [{"name": name, **row} for name, row in rows.items()]
        print(json.dumps({"speedup": speedup, "rows": listed}))
    else:
        for name, row in rows.items():
            print(f"{name}: {row['speedup']} times as fast as naive torch ({row})")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
