"""Does the same map come out of torch, of ONNX Runtime and of reduced precision?"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from matching.engine import Engine
from matching.image import pixel_batch
from matching.models.backbones import Backbones
from matching.saliency import SHOWN_MAP, region_maps
from matching.text import caption_batch
from matching.visible_pairs import Pair


def overlay_agreement(
    engine: Engine,
    backbones: Backbones,
    scorer: nn.Module,
    pairs: list[Pair],
) -> dict[str, dict[str, float]]:
    """Against the map of torch in fp32, scaled to its largest value: differences in 0 to 1."""
    ours = [_torch_map(backbones, scorer, pair, torch.float32) for pair in pairs]
    others = {
        f"ONNX Runtime, {engine.provider}": [_engine_map(engine, pair) for pair in pairs],
    }
    for name, kind in (
        ("torch, fp16 scorer", torch.float16),
        ("torch, bf16 scorer", torch.bfloat16),
    ):
        reduced = copy.deepcopy(scorer).to(kind)
        others[name] = [
            _torch_map(backbones, scorer, pair, kind, reduced)
            for pair in tqdm(pairs, name, mininterval=5)
        ]
    return {name: _agreement(ours, maps) for name, maps in others.items()}


def _agreement(ours: list[np.ndarray], others: list[np.ndarray]) -> dict[str, float]:
    pairs = list(zip(ours, others, strict=True))
    differences = [np.abs(a / a.max() - b / b.max()) for a, b in pairs]
    return {
        "largest_difference": float(max(d.max() for d in differences)),
        "mean_difference": float(np.mean([d.mean() for d in differences])),
        "same_strongest": round(
            100 * float(np.mean([a.argmax() == b.argmax() for a, b in pairs])), 1
        ),
    }


@torch.inference_mode()
def _torch_map(
    backbones: Backbones,
    scorer: nn.Module,
    pair: Pair,
    kind: torch.dtype,
    reduced: nn.Module | None = None,
) -> np.ndarray:
    """The pair is scored in `kind`; sides are made in fp32, as a gallery keeps them."""
    batch = caption_batch([pair.caption])
    ids, words = torch.from_numpy(batch.piece_ids), torch.from_numpy(batch.word_pieces)
    photo = scorer.photo_side(backbones.photos(torch.from_numpy(pixel_batch([pair.pixels]))))
    caption, mask = scorer.caption_side(backbones.text(ids), ids != 0, words)
    scores = (reduced or scorer)(photo.to(kind), caption.to(kind), mask)
    attention, gates = scores.word_attention[0, 0], (scores.word_gates, scores.region_gates)
    parts = (attention, *(g[0, 0] for g in gates))
    return region_maps(*(part.float().numpy() for part in parts))[SHOWN_MAP]


def _engine_map(engine: Engine, pair: Pair) -> np.ndarray:
    _, photos = engine.encode_photos([pair.pixels])
    _, captions = engine.encode_captions([pair.caption])
    found = engine.explain_pair(photos[0], captions[0])
    return region_maps(found.word_attention, found.word_gates, found.region_gates)[SHOWN_MAP]
