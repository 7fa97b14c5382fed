"""An engine folder opened with ONNX Runtime: three graphs, a tokenizer, engine.json. Torch-free."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from matching.contract import FORMAT_VERSION, GRAPHS, GraphSpec
from matching.files import read_json, sha256_of
from matching.image import NUM_REGIONS, pixel_batch
from matching.ranking import Ranking
from matching.text import Caption, CaptionReader, caption_batch

BACKENDS = {
    "cpu": ["CPUExecutionProvider"],
    "cuda": ["CUDAExecutionProvider"],
    "tensorrt": ["TensorrtExecutionProvider", "CUDAExecutionProvider"],
}
_PHOTOS_A_RUN = 8  # of the image encoder: more do not fit the cache and are slower
_PAIRS_A_RUN = 16  # of the pair scorer, likewise


class EngineError(ValueError):
    """An engine folder that cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class PairExplanation:
    """What the page shows of one pair."""

    logit: float
    word_attention: np.ndarray  # (N, R)
    region_attention: np.ndarray  # (R, N)
    word_gates: np.ndarray  # (N,)
    region_gates: np.ndarray  # (R,)


class Engine:
    """Encodes photos and captions and scores pairs."""

    def __init__(self, folder: Path, backend: str = "auto"):
        self.folder = folder
        self.description = _read_description(folder)
        self.sha256 = self.description["model_sha256"]
        self.embedding_width = int(self.description["embedding_width"])
        self.side_width = int(self.description["side_width"])
        self.ranking = Ranking(**self.description["ranking"])
        began = time.perf_counter()
        self._sessions = {g.name: _open_graph(folder, g, backend) for g in GRAPHS}
        self.load_seconds = time.perf_counter() - began
        self.provider = self._sessions["pair_scorer"].get_providers()[0]
        try:
            self.captions = CaptionReader(folder / "tokenizer.json")
        except Exception as error:  # the tokenizers package raises plain Exception
            raise EngineError(f"{folder}/tokenizer.json cannot be read ({error})") from None

    @property
    def name(self) -> str:
        """For people: what it is and what it runs on."""
        version = onnxruntime.__version__
        return f"{self.description['name']} on ONNX Runtime {version}, {self.provider}"

    def encode_photos(self, pixels: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Pixels of matching.image.photo_pixels -> embeddings (B, D), sides (B, R, S)."""
        runs = [
            self._run("image_encoder", pixels=pixel_batch(list(pixels[i : i + _PHOTOS_A_RUN])))
            for i in range(0, len(pixels), _PHOTOS_A_RUN)
        ]
        return np.concatenate([r[0] for r in runs]), np.concatenate([r[1] for r in runs])

    def encode_captions(self, captions: Sequence[Caption]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Embeddings (B, D) and B sides (N, S), each of its own length."""
        batch = caption_batch(list(captions))
        embeddings, sides = self._run(
            "text_encoder",
            piece_ids=batch.piece_ids,
            word_pieces=batch.word_pieces,
        )
        lengths = [len(c.words) for c in captions]
        return embeddings, [side[:n] for side, n in zip(sides, lengths, strict=True)]

    def score_grid(
        self,
        photos: np.ndarray,
        captions: np.ndarray,
        word_mask: np.ndarray,
        outputs: tuple[str, ...] = ("logit",),
    ) -> list[np.ndarray]:
        """Every photo (P, R, S) with every caption (C, N, S): outputs, leading axes (P, C)."""
        step = max(1, _PAIRS_A_RUN // len(captions))
        runs = [
            self._sessions["pair_scorer"].run(
                list(outputs),
                {
                    "image_side": photos[i : i + step].astype(np.float32, copy=False),
                    "caption_side": captions,
                    "word_mask": word_mask,
                },
            )
            for i in range(0, len(photos), step)
        ]
        return [np.concatenate(parts) for parts in zip(*runs, strict=True)]

    def explain_pair(self, photo: np.ndarray, caption: np.ndarray) -> PairExplanation:
        """photo (R, S), caption (N, S)."""
        names = ("logit", "word_attention", "region_attention", "word_gates", "region_gates")
        everywhere = np.ones((1, len(caption)), bool)
        parts = self.score_grid(photo[None], caption[None], everywhere, names)
        return PairExplanation(float(parts[0][0, 0]), *(part[0, 0] for part in parts[1:]))

    def _run(self, graph: str, **inputs: np.ndarray) -> list[np.ndarray]:
        return self._sessions[graph].run(None, inputs)


def _read_description(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise EngineError(
            f"engine {folder} is not a folder: make one with python -m export.build_onnx"
        )
    remedy = "make it again with python -m export.build_onnx"
    try:
        description = read_json(folder / "engine.json")
    except (FileNotFoundError, ValueError) as error:
        raise EngineError(f"engine {folder} cannot be used: {error}; {remedy}") from None
    found = description.get("format_version") if isinstance(description, dict) else None
    if found != FORMAT_VERSION:
        raise EngineError(
            f"engine {folder} has format {found}, this program reads {FORMAT_VERSION}: {remedy}",
        )
    for name, sha256 in description["files"].items():
        path = folder / name
        if not path.is_file():
            raise EngineError(f"engine {folder} lacks its file {name}: {remedy}")
        if sha256_of(path) != sha256:
            raise EngineError(f"engine {folder}: {name} is truncated or was changed; {remedy}")
    if description["num_regions"] != NUM_REGIONS:
        raise EngineError(
            f"engine {folder} has {description['num_regions']} regions a photo, this program "
            f"expects {NUM_REGIONS}: {remedy}",
        )
    return description


def _open_graph(folder: Path, graph: GraphSpec, backend: str) -> onnxruntime.InferenceSession:
    providers = _providers(backend)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    path = folder / f"{graph.name}.onnx"
    try:
        session = onnxruntime.InferenceSession(path, options, providers=providers)
    except Exception as error:  # ONNX Runtime's errors share no public base class
        reason = str(error).splitlines()[0][:200]
        raise EngineError(f"engine {folder}: {path.name} does not load ({reason})") from None
    # A provider that is listed may still not start; a silent fall-back would be a lie.
    if backend != "auto" and session.get_providers()[0] != providers[0]:
        raise EngineError(
            f"backend {backend} was asked for, but {providers[0]} did not start on this machine: "
            "install requirements-gpu.txt on a machine with an NVIDIA GPU, or use --backend cpu",
        )
    return session


def _providers(backend: str) -> list[str]:
    available = onnxruntime.get_available_providers()
    if backend == "auto":
        return [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in available]
    if backend not in BACKENDS:
        raise EngineError(f"backend {backend!r} is not known: use auto, {', '.join(BACKENDS)}")
    if BACKENDS[backend][0] not in available:
        raise EngineError(
            f"backend {backend} needs {BACKENDS[backend][0]}, not in this ONNX Runtime: "
            "install requirements-gpu.txt, or use --backend cpu",
        )
    return [p for p in BACKENDS[backend] if p in available]
