"""The three trained modules put together for export, and example inputs of any size."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from matching.checkpoint import Checkpoint, load_checkpoint
from matching.contract import PAIR_OUTPUTS, GraphSpec, graphs
from matching.image import IMAGE_SIZE, NUM_REGIONS
from matching.models.backbones import Backbones, backbones_beside
from matching.models.encoders import ImageEncoder, PairScorer, TextEncoder
from matching.models.text_backbone import backbone_folder
from matching.models.vse_infinity import VseInfinity
from matching.text import CaptionReader, caption_batch

DEFAULT_CHECKPOINT = Path("checkpoints/standard")
_SENTENCES = (
    "skateboarder",  # first: a caption alone is then of one word
    "a dog in the snow",
    "two children in red coats play football on a wet street while a bus passes behind them",
    "A plate of food with broccoli, rice and an unidentifiable yellowish sauce.",
    "an old man reads a newspaper on a park bench",
)


def add_checkpoint_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stage1", type=Path, metavar="C", help="checkpoint of stage 1")
    parser.add_argument("--scorer", type=Path, metavar="C", help="checkpoint of the scorer")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=DEFAULT_CHECKPOINT,
        metavar="C",
        help="stands for --stage1 C/vse_infinity --scorer C/camp (default %(default)s)",
    )


def checkpoint_folders(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """Of stage 1 and of the scorer."""
    return (
        arguments.stage1 or arguments.checkpoint / "vse_infinity",
        arguments.scorer or arguments.checkpoint / "camp",
    )


@dataclass(frozen=True)
class TrainedGraphs:
    image_encoder: ImageEncoder
    text_encoder: TextEncoder
    pair_scorer: PairScorer
    stage1: Checkpoint
    scorer: Checkpoint
    backbone_sha256: str

    @staticmethod
    def load(stage1_folder: Path, scorer_folder: Path) -> TrainedGraphs:
        """Reads two checkpoints, which may be the same one, and their backbones."""
        scorer = load_checkpoint(scorer_folder, "scorer")
        stage1 = load_checkpoint(stage1_folder, "stage1")
        if (stage1.sha256, stage1.config["model"]) == (scorer.sha256, scorer.config["model"]):
            stage1 = scorer  # one module: its encoders run once
        backbones = Backbones.load(backbones_beside(stage1_folder))
        found = backbones.sha256
        for checkpoint in (stage1, scorer):
            _check_encoders(checkpoint, found)
        if isinstance(stage1.model, VseInfinity):
            stage1.model.freeze_pooling()
        return TrainedGraphs(
            ImageEncoder(backbones.photos, stage1.model, scorer.model).eval(),
            TextEncoder(backbones.text, stage1.model, scorer.model).eval(),
            PairScorer(scorer.model).eval(),
            stage1,
            scorer,
            found,
        )

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the scorer has of PAIR_OUTPUTS."""
        scorer = self.scorer.model
        # Photos and captions of nothing but zeros: which parts there are does not depend on them.
        photos = torch.zeros(1, scorer.extra_positions + NUM_REGIONS, scorer.side_width)
        captions = torch.zeros(1, scorer.extra_positions + 2, scorer.side_width)
        with torch.inference_mode():
            scores = self.pair_scorer(photos, captions, torch.ones(1, captions.shape[1]).bool())
        return tuple(name for name in PAIR_OUTPUTS if getattr(scores, name) is not None)

    @property
    def specs(self) -> tuple[GraphSpec, ...]:
        return graphs(self.scorer.model.extra_positions, self.outputs)

    def module(self, graph: GraphSpec) -> nn.Module:
        return getattr(self, graph.name)

    @torch.no_grad()  # not inference_mode: the exporter does not take its tensors
    def example(self, graph: GraphSpec, photos: int, captions: int) -> tuple[Tensor, ...]:
        """Inputs of a graph: photos with shapes in them and real sentences, padded together."""
        if graph.name == "image_encoder":
            return (example_pixels(photos),)
        batch = caption_batch(self._sentences(captions))
        text = (torch.from_numpy(batch.piece_ids), torch.from_numpy(batch.word_pieces))
        if graph.name == "text_encoder":
            return text
        sides = self.image_encoder(example_pixels(photos))[1], self.text_encoder(*text)[1]
        whole = torch.ones(captions, self.scorer.model.extra_positions, dtype=torch.bool)
        return (*sides, torch.cat([whole, torch.from_numpy(batch.word_mask)], dim=1))

    @staticmethod
    def _sentences(count: int) -> list:
        reader = CaptionReader(backbone_folder() / "tokenizer.json")
        return [reader.read(_SENTENCES[i % len(_SENTENCES)]) for i in range(count)]


def example_pixels(photos: int) -> Tensor:
    """Smooth random fields of colour: (photos, 3, 256, 256), 0 to 255."""
    rng = np.random.default_rng(photos)
    coarse = torch.from_numpy(rng.uniform(0, 255, (photos, 3, 9, 9)).astype(np.float32))
    size = (IMAGE_SIZE, IMAGE_SIZE)
    return nn.functional.interpolate(coarse, size, mode="bilinear", align_corners=True)


def _check_encoders(checkpoint: Checkpoint, backbone: str) -> None:
    config = checkpoint.config
    kinds = tuple(config["model"][name] for name in ("region_encoder", "word_encoder"))
    if kinds != ("taps", "minilm"):
        raise ValueError(
            f"{checkpoint.folder} reads regions by {kinds[0]!r} and words by {kinds[1]!r}; an "
            "engine reads photos and captions by 'taps' and 'minilm': train such a checkpoint",
        )
    found = config.get("backbone_sha256", "")
    if found != backbone:
        raise ValueError(
            f"{checkpoint.folder} was trained on backbones {found[:12]!r}, those of stage 1 are "
            f"{backbone[:12]}: give two checkpoints of the same backbones, with the folder "
            "backbones beside them if they were tuned, and the versions of requirements-dev.txt",
        )
