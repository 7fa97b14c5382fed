"""Encodes a split from its features on disk with the trained heads (torch)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from matching.encoded import Encoded, GridScores
from matching.features import Features
from matching.models.camp import Camp, Side
from matching.models.encoders import join_side, split_side
from matching.models.vse_infinity import VseInfinity

_AT_ONCE = 128


@dataclass(frozen=True)
class SplitMembers:
    """Which photos and captions of a feature folder make up a test."""

    photos: np.ndarray
    captions: np.ndarray
    photo_of_caption: np.ndarray  # position in `photos`

    @staticmethod
    def of(features: Features, split: str, limit: int, captions_a_photo: int = 5) -> SplitMembers:
        photos = features.photos_of(split)[:limit]
        lists = [features.captions_of(p)[:captions_a_photo] for p in photos]
        owners = np.concatenate([np.full(len(c), i) for i, c in enumerate(lists)])
        return SplitMembers(photos, np.concatenate(lists), owners)


@torch.inference_mode()
def embed_photos(model: VseInfinity, features: Features, photos: np.ndarray) -> np.ndarray:
    parts = []
    for start in range(0, len(photos), _AT_ONCE):
        regions = torch.from_numpy(features.regions(photos[start : start + _AT_ONCE])).float()
        parts.append(model.embed_photos(regions))
    return torch.cat(parts).numpy()


def caption_tensors(features: Features, captions: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    pieces = features.pieces(captions)
    hidden = torch.from_numpy(pieces.hidden).float()
    return hidden, torch.from_numpy(pieces.piece_mask), torch.from_numpy(pieces.word_pieces)


@torch.inference_mode()
def embed_captions(model: VseInfinity, features: Features, captions: np.ndarray) -> np.ndarray:
    parts = [
        model.embed_captions(*caption_tensors(features, captions[start : start + _AT_ONCE]))
        for start in range(0, len(captions), _AT_ONCE)
    ]
    return torch.cat(parts).numpy()


@torch.inference_mode()
def encode_split(
    stage1: VseInfinity,
    camp: Camp,
    features: Features,
    members: SplitMembers,
) -> Encoded:
    photo_sides, caption_sides = [], []
    for start in range(0, len(members.photos), _AT_ONCE):
        regions = torch.from_numpy(features.regions(members.photos[start : start + _AT_ONCE]))
        photo_sides.append(
            join_side(camp.photo_side(camp.region_features(regions.float()))).numpy()
        )
    for start in range(0, len(members.captions), _AT_ONCE):
        tensors = caption_tensors(features, members.captions[start : start + _AT_ONCE])
        sides = join_side(camp.caption_side(camp.word_features(*tensors))).numpy()
        lengths = (tensors[2].sum(-1) > 0).sum(-1).tolist()
        caption_sides += [side[:n].copy() for side, n in zip(sides, lengths, strict=True)]
    return Encoded(
        embed_photos(stage1, features, members.photos),
        np.concatenate(photo_sides),
        embed_captions(stage1, features, members.captions),
        caption_sides,
        members.photo_of_caption,
    )


def grid_scorer(camp: Camp):
    """CAMP in torch as the function that matching.encoded calls."""

    @torch.inference_mode()
    def score(photos: np.ndarray, captions: np.ndarray, mask: np.ndarray) -> GridScores:
        sides: list[Side] = [split_side(camp, torch.from_numpy(a)) for a in (photos, captions)]
        scores = camp(*sides, torch.from_numpy(mask))
        return GridScores(
            *(t.numpy() for t in (scores.logit, scores.word_gates, scores.region_gates))
        )

    return score
