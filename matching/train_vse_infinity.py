"""How VSE-infinity is trained: one random caption a photo and epoch, contrastive loss."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from matching.batches import (
    Batch,
    TrainingSet,
    batches_of_like_length,
    drop_regions,
    drop_words,
    made_ahead,
)
from matching.checkpoint import save_checkpoint
from matching.config import VseInfinityConfig, VseInfinityTraining
from matching.encode_features import SplitMembers, embed_captions, embed_photos
from matching.features import Features
from matching.losses import contrastive
from matching.metrics import evaluate_scores
from matching.models.vse_infinity import VseInfinity


class VseInfinityRecipe:
    def __init__(
        self,
        model_config: VseInfinityConfig,
        config: VseInfinityTraining,
        data: TrainingSet,
        validation: Features,
        out: Path,
        details: dict[str, Any],
    ) -> None:
        torch.manual_seed(config.seed)
        self.model = VseInfinity(model_config)
        self.model.text.load_pretrained()
        self.epochs = config.epochs
        self.steps_an_epoch = len(data) // config.batch_size
        self._config, self._model_config, self._data = config, model_config, data
        self._features = validation
        self._members = SplitMembers.of(validation, "val", limit=1000)
        self._out, self._details = out, details

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        rng = np.random.default_rng((self._config.seed, epoch))
        drawn = self._data.draw_captions(self._config.seed, epoch)
        batches = batches_of_like_length(
            rng.permutation(len(self._data)),
            self._data.caption_lengths(drawn),
            self._config.batch_size,
            rng,
        )
        return made_ahead(partial(self._data.batch, b, drawn) for b in batches[first_step:])

    def loss(self, batch: Batch) -> Tensor:
        regions = drop_regions(batch.regions, self._config.region_drop)
        word_pieces = drop_words(batch.word_pieces, self._config.word_drop)
        photos = self.model.embed_photos(regions)
        captions = self.model.embed_captions(batch.hidden, batch.piece_mask, word_pieces)
        scale = self.model.log_scale.clamp(max=4.6).exp()  # at most 100, as in CLIP
        return contrastive(scale * photos @ captions.T)

    def validate(self, model: VseInfinity) -> dict[str, Any]:
        photos = embed_photos(model, self._features, self._members.photos)
        captions = embed_captions(model, self._features, self._members.captions)
        retrieval = evaluate_scores(photos @ captions.T, self._members.photo_of_caption)
        return {"selection": retrieval.rsum, "stage1": retrieval.to_json()}

    def save_best(self, weights: dict[str, Tensor], validation: dict[str, Any]) -> None:
        details = {**self._details, "epoch": validation["epoch"]}
        save_checkpoint(self._out, "vse_infinity", weights, self._model_config, details)
