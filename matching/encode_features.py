"""Encodes a split from its features on disk with trained models (torch)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from matching.caption_inputs import CaptionInputs, as_tensor, caption_tensors, inputs_for
from matching.checkpoint import Checkpoint
from matching.datasets import Dataset
from matching.encoded import Encoded, GridScores, ScoreGrid
from matching.popularity import Popularity
from matching.similarity import Similarity

_AT_ONCE = 128


@dataclass(frozen=True)
class Matcher:
    """A model and how it reads captions."""

    model: nn.Module
    inputs: CaptionInputs
    popularity: Popularity = Popularity.none()  # of a stage 1

    @staticmethod
    def of(checkpoint: Checkpoint) -> Matcher:
        inputs = inputs_for(checkpoint.model.config, checkpoint.vocabulary)
        return Matcher(checkpoint.model, inputs, checkpoint.popularity)


@dataclass(frozen=True)
class SplitMembers:
    """Which photos and captions of a data set make up a test."""

    photos: np.ndarray
    captions: np.ndarray
    photo_of_caption: np.ndarray  # position in `photos`

    @staticmethod
    def of(dataset: Dataset, split: str, limit: int, captions_a_photo: int = 5) -> SplitMembers:
        photos = dataset.photos_of(split)[:limit]
        lists = [dataset.captions_of(p)[:captions_a_photo] for p in photos]
        owners = np.concatenate([np.full(len(c), i) for i, c in enumerate(lists)])
        return SplitMembers(photos, np.concatenate(lists), owners)


def photo_tensors(dataset: Dataset, photos: np.ndarray) -> tuple[Tensor, Tensor | None]:
    """Regions (B, R, C) and their mask, None if every photo has all of them."""
    mask = dataset.region_mask(photos)
    return as_tensor(dataset.regions(photos)), None if mask is None else torch.from_numpy(mask)


@torch.inference_mode()
def embed_photos(stage1: Matcher, dataset: Dataset, photos: np.ndarray) -> np.ndarray:
    parts = [stage1.model.embed_photos(*photo_tensors(dataset, chunk)) for chunk in _chunks(photos)]
    return torch.cat(parts).numpy()


@torch.inference_mode()
def embed_captions(stage1: Matcher, dataset: Dataset, captions: np.ndarray) -> np.ndarray:
    parts = [
        stage1.model.embed_captions(*caption_tensors(stage1.inputs, dataset, chunk))
        for chunk in _chunks(captions)
    ]
    return torch.cat(parts).numpy()


@torch.inference_mode()
def encode_split(
    stage1: Matcher,
    scorer: Matcher | None,
    dataset: Dataset,
    members: SplitMembers,
) -> Encoded:
    """Both stages of a split; without a scorer, stage 1 alone."""
    photo_sides, caption_sides = [], []
    if scorer is not None:
        for chunk in _chunks(members.photos):
            photo_sides.append(scorer.model.photo_side(*photo_tensors(dataset, chunk)).numpy())
        for chunk in _chunks(members.captions):
            tensors = caption_tensors(scorer.inputs, dataset, chunk)
            sides, mask = scorer.model.caption_side(*tensors)
            lengths = mask.sum(-1).tolist()
            caption_sides += [s[:n].numpy().copy() for s, n in zip(sides, lengths, strict=True)]
    return Encoded(
        photo_embeddings=embed_photos(stage1, dataset, members.photos),
        photo_sides=np.concatenate(photo_sides) if photo_sides else None,
        caption_embeddings=embed_captions(stage1, dataset, members.captions),
        caption_sides=caption_sides or None,
        photo_of_caption=members.photo_of_caption,
        similarity=Similarity(**stage1.model.similarity_settings()),
        popularity=stage1.popularity,
    )


def grid_scorer(scorer: nn.Module) -> ScoreGrid:
    """A scorer in torch as the function that matching.encoded calls."""

    @torch.inference_mode()
    def score(photos: np.ndarray, captions: np.ndarray, mask: np.ndarray) -> GridScores:
        scores = scorer(*(torch.from_numpy(a) for a in (photos, captions, mask)))
        parts = (scores.logit, scores.word_gates, scores.region_gates)
        return GridScores(*(None if t is None else t.numpy() for t in parts))

    return score


def _chunks(rows: np.ndarray) -> list[np.ndarray]:
    return [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]
