"""How CAMP is trained: groups of photos that stage 1 confuses, all pairs of a group scored.

Random negatives are solved after an epoch; at search time CAMP only sees what stage 1 could not
tell apart, so that is what it is trained on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from matching.batches import Batch, TrainingSet, drop_regions, drop_words, made_ahead
from matching.checkpoint import load_checkpoint, record_metrics, save_checkpoint
from matching.config import CampConfig, CampTraining
from matching.encode_features import SplitMembers, encode_split, grid_scorer
from matching.encoded import Reranked, evaluate_reranked
from matching.features import Features
from matching.files import write_json
from matching.losses import contrastive, hardest_negative_binary, mean_gate_binary
from matching.models.camp import Camp, Side
from matching.models.vse_infinity import VseInfinity

_VALIDATION_SHORTLIST = 50


class CampRecipe:
    def __init__(
        self,
        model_config: CampConfig,
        config: CampTraining,
        data: TrainingSet,
        stage1: VseInfinity,
        photo_embeddings: np.ndarray,
        validation: Features,
        out: Path,
        details: dict[str, Any],
    ) -> None:
        torch.manual_seed(config.seed)
        self.model = Camp(model_config)
        start_from_stage1(self.model, stage1, photo_embeddings)
        self.epochs = config.epochs
        self._parts = len(data) // config.pool_size  # pools an epoch
        steps_a_pool = config.pool_size // (config.groups * config.group_size)
        self.steps_an_epoch = self._parts * steps_a_pool
        self._config, self._model_config, self._data = config, model_config, data
        self._stage1, self._photo_embeddings = stage1, photo_embeddings
        self._features = validation
        self._members = SplitMembers.of(validation, "val", limit=1000, captions_a_photo=1)
        self._out, self._details = out, details

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        drawn = self._data.draw_captions(self._config.seed, epoch)
        steps = self._epoch_members(epoch, self._data.caption_lengths(drawn))[first_step:]
        return made_ahead(partial(self._data.batch, members, drawn) for members in steps)

    def _epoch_members(self, epoch: int, lengths: np.ndarray) -> np.ndarray:
        """The photos of each step of an epoch: (steps, groups x G), a group's photos together."""
        config = self._config
        rng = np.random.default_rng((config.seed, epoch))
        order = rng.permutation(len(self._data))
        steps = []
        for part in range(self._parts):
            pool = order[part * config.pool_size : (part + 1) * config.pool_size]
            groups = pool[confusable_groups(self._photo_embeddings[pool], config.group_size)]
            # Groups of like caption length share a step: padding costs as much as words do.
            groups = groups[np.argsort(lengths[groups].max(1), kind="stable")]
            whole = len(groups) // config.groups * config.groups
            steps.append(groups[:whole].reshape(-1, config.groups * config.group_size))
        return np.concatenate(steps)[rng.permutation(self.steps_an_epoch)]

    def loss(self, batch: Batch) -> Tensor:
        config, camp = self._config, self.model
        shape = (config.groups, config.group_size)
        regions = drop_regions(batch.regions, config.region_drop)
        word_pieces = drop_words(batch.word_pieces, config.word_drop)
        mask = (word_pieces.sum(-1) > 0).unflatten(0, shape)
        photo = camp.photo_side(camp.region_features(regions))
        words = camp.word_features(batch.hidden, batch.piece_mask, word_pieces)
        caption = camp.caption_side(words)
        photo, caption = (Side(*(part.unflatten(0, shape) for part in s)) for s in (photo, caption))
        scores = camp(photo, caption, mask)  # (groups, G, G): all pairs of each group
        word_gates = scores.word_gates.sum(-1) / mask[:, None].sum(-1)
        gates = mean_gate_binary(word_gates) + mean_gate_binary(scores.region_gates.mean(-1))
        return (
            contrastive(scores.logit)
            + config.binary_weight * hardest_negative_binary(scores.logit)
            + config.gate_weight * gates
        )

    def validate(self, model: Camp) -> dict[str, Any]:
        encoded = encode_split(self._stage1, model, self._features, self._members)
        reranked = Reranked.of(encoded, grid_scorer(model), _VALIDATION_SHORTLIST)
        ranking = reranked.choose_ranking()
        best = reranked.retrieval(ranking.stage1_weight)
        return {
            "selection": best.rsum,
            "rerank": best.to_json(),
            "camp_alone": reranked.retrieval(0.0).to_json(),
            "ranking": dataclasses.asdict(ranking),
            "gates": reranked.gates(),
        }

    def save_best(self, weights: dict[str, Tensor], validation: dict[str, Any]) -> None:
        details = {**self._details, "epoch": validation["epoch"], "ranking": validation["ranking"]}
        save_checkpoint(self._out, "camp", weights, self._model_config, details)


def finish(out: Path, stage1: VseInfinity, features: Features) -> None:
    """Chooses the final score and its probability on all of `val` and records the result."""
    camp = load_checkpoint(out, "camp")
    members = SplitMembers.of(features, "val", limit=1000)
    score = grid_scorer(camp.model)
    reranked = Reranked.of(encode_split(stage1, camp.model, features, members), score)
    ranking = reranked.choose_ranking()
    write_json(out / "config.json", {**camp.config, "ranking": dataclasses.asdict(ranking)})
    record_metrics(out, "val", evaluate_reranked(reranked, score, ranking))


@torch.no_grad()
def start_from_stage1(camp: Camp, stage1: VseInfinity, photo_embeddings: np.ndarray) -> None:
    """Gives CAMP the encoders of stage 1, turned into its own, smaller space.

    Regions and words of stage 1 already lie near each other where they mean the same. The main
    directions of the photos' embeddings keep most of that.
    """
    camp.text.load_state_dict(stage1.text.state_dict())
    _, _, directions = np.linalg.svd(
        photo_embeddings - photo_embeddings.mean(0),
        full_matrices=False,
    )
    basis = torch.from_numpy(directions[: camp.dimension]).float()  # (D of CAMP, D of stage 1)
    for ours, theirs in ((camp.regions, stage1.regions), (camp.words, stage1.words)):
        ours.norms.load_state_dict(theirs.norms.state_dict())
        if ours.widen.weight.shape != theirs.widen.weight.shape or len(basis) < camp.dimension:
            continue  # other widths: these parts start at random
        ours.widen.load_state_dict(theirs.widen.state_dict())
        for name in ("linear", "narrow"):
            own, other = getattr(ours, name), getattr(theirs, name)
            own.weight.copy_(basis @ other.weight)
            own.bias.copy_(basis @ other.bias)


def confusable_groups(embeddings: np.ndarray, group_size: int) -> np.ndarray:
    """Parts a pool into groups: a photo and its nearest neighbours that are still free.

    embeddings: (pool, D) of unit length -> (pool // group_size, group_size) positions.
    """
    similarities = embeddings @ embeddings.T
    free = np.ones(len(embeddings), bool)
    groups = []
    for _ in range(len(embeddings) // group_size):
        seed = int(np.argmax(free))
        row = np.where(free, similarities[seed], -np.inf)
        row[seed] = np.inf
        group = np.argsort(-row, kind="stable")[:group_size]
        free[group] = False
        groups.append(group)
    return np.array(groups)
