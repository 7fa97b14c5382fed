"""The three trained modules put together for export, and example inputs of any size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from matching.checkpoint import Checkpoint, load_checkpoint
from matching.contract import GraphSpec
from matching.image import IMAGE_SIZE
from matching.models.encoders import ImageEncoder, PairScorer, TextEncoder
from matching.models.image_backbone import ImageBackbone
from matching.models.text_backbone import LowerTextBackbone, backbone_folder
from matching.prepare import backbone_sha256
from matching.text import CaptionReader, caption_batch

_SENTENCES = (
    "a dog in the snow",
    "two children in red coats play football on a wet street while a bus passes behind them",
    "skateboarder",
    "A plate of food with broccoli, rice and an unidentifiable yellowish sauce.",
    "an old man reads a newspaper on a park bench",
)


@dataclass(frozen=True)
class TrainedGraphs:
    image_encoder: ImageEncoder
    text_encoder: TextEncoder
    pair_scorer: PairScorer
    stage1: Checkpoint
    camp: Checkpoint

    @staticmethod
    def load(folder: Path) -> TrainedGraphs:
        """Reads checkpoints/NAME/{vse_infinity,camp} and the frozen backbones."""
        stage1 = load_checkpoint(folder / "vse_infinity", "vse_infinity")
        camp = load_checkpoint(folder / "camp", "camp")
        image_backbone, text_backbone = ImageBackbone().eval(), LowerTextBackbone().eval()
        found = backbone_sha256(image_backbone, text_backbone)
        for checkpoint in (stage1, camp):
            if checkpoint.config["backbone_sha256"] != found:
                raise ValueError(
                    f"{folder}/{checkpoint.system} was trained on backbone "
                    f"{checkpoint.config['backbone_sha256'][:12]}, installed is {found[:12]}: "
                    "install the versions of requirements-dev.txt",
                )
        stage1.model.region_pooling.freeze()
        stage1.model.word_pooling.freeze()
        return TrainedGraphs(
            ImageEncoder(image_backbone, stage1.model, camp.model).eval(),
            TextEncoder(text_backbone, stage1.model, camp.model).eval(),
            PairScorer(camp.model).eval(),
            stage1,
            camp,
        )

    def module(self, graph: GraphSpec) -> nn.Module:
        return getattr(self, graph.name)

    @torch.inference_mode()
    def example(self, graph: GraphSpec, photos: int, captions: int) -> tuple[Tensor, ...]:
        """Inputs of a graph: photos with shapes in them and real sentences, padded together."""
        if graph.name == "image_encoder":
            return (example_pixels(photos),)
        batch = caption_batch(self._sentences(captions))
        text = (torch.from_numpy(batch.piece_ids), torch.from_numpy(batch.word_pieces))
        if graph.name == "text_encoder":
            return text
        sides = self.image_encoder(example_pixels(photos))[1], self.text_encoder(*text)[1]
        return (*sides, torch.from_numpy(batch.word_mask))

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
