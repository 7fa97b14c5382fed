"""An engine folder opened with ONNX Runtime: three graphs, a tokenizer, engine.json. Torch-free."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from matching.contract import GRAPH_NAMES
from matching.engine_description import EngineDescription, EngineError
from matching.image import pixel_batch
from matching.popularity import POPULARITY_FILE, Popularity
from matching.ranking import Ranking
from matching.similarity import Similarity
from matching.text import Caption, CaptionReader, caption_batch

BACKENDS = {
    "cpu": ["CPUExecutionProvider"],
    "cuda": ["CUDAExecutionProvider"],
    "tensorrt": ["TensorrtExecutionProvider", "CUDAExecutionProvider"],
}
_PHOTOS_A_RUN = 8  # of the image encoder: more do not fit the cache and are slower
_PAIRS_A_RUN = 16  # of the pair scorer, likewise


@dataclass(frozen=True)
class PairExplanation:
    """What the page shows of one pair. None: the scorer has no such part."""

    logit: float
    word_attention: np.ndarray | None = None  # (N, R)
    region_attention: np.ndarray | None = None  # (R, N)
    word_gates: np.ndarray | None = None  # (N,)
    region_gates: np.ndarray | None = None  # (R,)


class Engine:
    """Encodes photos and captions and scores pairs."""

    def __init__(self, folder: Path, backend: str = "auto"):
        self.folder = folder
        self.description = EngineDescription.read(folder)
        self.description.check_files(folder)
        self.sha256 = self.description.sha256
        self.embedding_width = self.description.embedding_width
        self.side_width = self.description.side_width
        self.extra_positions = self.description.scorer.extra_positions
        self.outputs = self.description.scorer.outputs
        self.ranking = Ranking(**self.description.ranking)
        self.similarity = Similarity(**self.description.stage1.similarity)
        self.popularity = self._read_popularity()
        began = time.perf_counter()
        self._sessions = {
            name: _open_graph(folder, self.description.path(folder, f"{name}.onnx"), backend)
            for name in GRAPH_NAMES
        }
        self.load_seconds = time.perf_counter() - began
        self.provider = self._sessions["pair_scorer"].get_providers()[0]
        try:
            self.captions = CaptionReader(self.description.path(folder, "tokenizer.json"))
        except Exception as error:  # the tokenizers package raises plain Exception
            raise EngineError(f"{folder}/tokenizer.json cannot be read ({error})") from None

    def _read_popularity(self) -> Popularity:
        if not self.description.has(POPULARITY_FILE):
            return Popularity.none()
        return Popularity.read(self.description.path(self.folder, POPULARITY_FILE))

    @property
    def name(self) -> str:
        """For people: what it is and what it runs on."""
        version = onnxruntime.__version__
        return f"{self.description.name} on ONNX Runtime {version}, {self.provider}"

    @property
    def has_gates(self) -> bool:
        return {"word_gates", "region_gates"} <= set(self.outputs)

    def encode_photos(self, pixels: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Pixels of matching.image.photo_pixels -> embeddings (B, E), sides (B, X + R, S)."""
        runs = [
            self._run("image_encoder", pixels=pixel_batch(list(pixels[i : i + _PHOTOS_A_RUN])))
            for i in range(0, len(pixels), _PHOTOS_A_RUN)
        ]
        return np.concatenate([r[0] for r in runs]), np.concatenate([r[1] for r in runs])

    def encode_captions(self, captions: Sequence[Caption]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Embeddings (B, E) and B sides (X + N, S), each of its own length."""
        batch = caption_batch(list(captions))
        embeddings, sides = self._run(
            "text_encoder",
            piece_ids=batch.piece_ids,
            word_pieces=batch.word_pieces,
        )
        lengths = [self.extra_positions + len(c.words) for c in captions]
        return embeddings, [side[:n] for side, n in zip(sides, lengths, strict=True)]

    def score_grid(
        self,
        photos: np.ndarray,
        captions: np.ndarray,
        word_mask: np.ndarray,
        outputs: tuple[str, ...] = ("logit",),
    ) -> list[np.ndarray]:
        """Every photo (P, X + R, S) with every caption (C, X + N, S): outputs, leading axes (P, C).

        word_mask is that of the positions, (C, X + N).
        """
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
        """photo (X + R, S), caption (X + N, S)."""
        everywhere = np.ones((1, len(caption)), bool)
        parts = self.score_grid(photo[None], caption[None], everywhere, self.outputs)
        found = {name: part[0, 0] for name, part in zip(self.outputs, parts, strict=True)}
        return PairExplanation(float(found.pop("logit")), **found)

    def _run(self, graph: str, **inputs: np.ndarray) -> list[np.ndarray]:
        return self._sessions[graph].run(None, inputs)


def _open_graph(folder: Path, path: Path, backend: str) -> onnxruntime.InferenceSession:
    providers = _providers(backend)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
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
