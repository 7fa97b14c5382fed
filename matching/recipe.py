"""How any system is trained: samples into groups, all pairs of a group scored, losses added up.

Embedders see large groups of random photos. Pair scorers see small groups of photos that stage 1
takes for each other: random negatives are solved after an epoch, and at search time a scorer only
sees what stage 1 could not tell apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from matching.batches import (
    Batch,
    NamedClasses,
    Samples,
    SwappedCaptions,
    TrainingSet,
    batches_of_like_length,
    drop_regions,
    made_ahead,
)
from matching.caption_inputs import CaptionInputs
from matching.checkpoint import save_checkpoint
from matching.config import Training
from matching.datasets import Dataset
from matching.encode_features import Matcher, SplitMembers, encode_split, grid_scorer
from matching.losses import (
    agreement,
    binary,
    contrastive,
    hinge_has_collapsed,
    mean_gate_binary,
    ranking,
    swapped,
)
from matching.metrics import evaluate_scores
from matching.models.scores import PairScores
from matching.reranked import Reranked
from matching.set_losses import diversity, mmd
from matching.systems import can_be, is_embedder
from matching.training import make_optimiser
from matching.vocabulary import Vocabulary

_LARGEST_SCALE = 4.6  # log of 100: the inverse temperature stays below it, as in CLIP


class SystemRecipe:
    def __init__(
        self,
        system: str,
        model: nn.Module,
        config: Training,
        data: TrainingSet,
        inputs: CaptionInputs,
        validation: Dataset,
        out: Path,
        details: dict[str, Any],
        stage1: Matcher | None = None,
        photo_embeddings: np.ndarray | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.model, self.epochs = model, config.epochs
        self._system, self._config, self._data, self._inputs = system, config, data, inputs
        self._embeds = is_embedder(model)
        size = config.groups * config.group_size
        samples = data.num_samples(config.epoch_of)
        if config.pool_size:
            self.steps_an_epoch = len(data) // config.pool_size * (config.pool_size // size)
        else:
            self.steps_an_epoch = samples // size
        self._stage1, self._photo_embeddings = stage1, photo_embeddings
        self._validation, self._out, self._details = validation, out, details
        captions = 5 if self._embeds else 1
        self._members = SplitMembers.of(validation, "val", limit=1000, captions_a_photo=captions)
        self._vocabulary = vocabulary

    def optimiser(self) -> torch.optim.Optimizer:
        return make_optimiser(self.model, self._config)

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        config = self._config
        samples = self._data.draw(config.seed, epoch, config.captions_a_photo, config.epoch_of)
        rng = np.random.default_rng((config.seed, epoch))
        lengths = self._data.caption_lengths(samples)
        order = rng.permutation(len(samples.photos))
        if config.pool_size:
            steps = self._confusable_steps(samples, order, lengths, rng)
        else:
            steps = batches_of_like_length(order, lengths, config.groups * config.group_size, rng)
        return made_ahead(
            partial(self._data.batch, samples, steps[i], [config.seed, epoch, i])
            for i in range(first_step, len(steps))
        )

    def _confusable_steps(
        self,
        samples: Samples,
        order: np.ndarray,
        lengths: np.ndarray,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """The samples of each step: (steps, groups x size), those of a group together."""
        config, steps = self._config, []
        for start in range(0, len(order) // config.pool_size * config.pool_size, config.pool_size):
            pool = order[start : start + config.pool_size]
            embeddings = self._photo_embeddings[samples.photos[pool]]
            groups = pool[confusable_groups(embeddings, config.group_size)]
            # Groups of like caption length share a step: padding costs as much as words do.
            groups = groups[np.argsort(lengths[groups].max(1), kind="stable")]
            whole = len(groups) // config.groups * config.groups
            steps.append(groups[:whole].reshape(-1, config.groups * config.group_size))
        return np.concatenate(steps)[rng.permutation(self.steps_an_epoch)]

    def loss(self, batch: Batch, epoch: int) -> Tensor:
        config = self._config
        regions, region_mask = batch.regions, batch.region_mask
        captions = batch.captions
        if config.region_drop:
            regions, region_mask = drop_regions(regions, region_mask, config.region_drop)
        if config.word_drop:
            captions = self._inputs.augmented(captions, config.word_drop)
        if self._embeds:
            scores, terms = self._embedded_scores(regions, region_mask, captions, batch.classes)
        else:
            scores, terms = self._pair_scores(regions, region_mask, captions, batch)
        hardest = config.hardest and epoch >= config.all_negatives_epochs
        return terms + score_loss(scores, config, hardest, self._scale())

    def warning(self, loss: float, epoch: int) -> str | None:
        """What to say if the hinge is stuck where all scores are the same."""
        config = self._config
        if not config.ranking_weight or not config.hardest or epoch < config.all_negatives_epochs:
            return None
        pairs = config.group_size * config.captions_a_photo
        hinge = loss / config.ranking_weight
        if not hinge_has_collapsed(hinge, config.margin, pairs, config.reduction):
            return None
        return (
            f"the loss {loss:.3f} is that of equal scores: training has collapsed or not begun to "
            "learn; try --all-negatives-epochs 1, a smaller --learning-rate or larger groups"
        )

    def _scale(self) -> Tensor | float:
        scale = getattr(self.model, "log_scale", None)
        return 1.0 if scale is None else scale.clamp(max=_LARGEST_SCALE).exp()

    def _grouped(self, part: Tensor, a_photo: int = 1) -> Tensor:
        size = self._config.group_size * a_photo
        return part.unflatten(0, (self._config.groups, size))

    def _embedded_scores(
        self,
        regions: Tensor,
        region_mask: Tensor | None,
        captions: tuple[Tensor, ...],
        classes: NamedClasses | None,
    ) -> tuple[Tensor, Tensor | float]:
        config, model = self._config, self.model
        terms: Tensor | float = 0.0
        if config.mmd_weight or config.diversity_weight:
            photo_set = model.photo_set(regions, region_mask)
            caption_set = model.caption_set(*captions)
            photos, texts = photo_set.embeddings.flatten(1), caption_set.embeddings.flatten(1)
            apart = diversity(photo_set.slots) + diversity(caption_set.slots)
            terms = config.diversity_weight * apart + config.mmd_weight * mmd(
                photo_set.embeddings, caption_set.embeddings
            )
        else:
            photos = model.embed_photos(regions, region_mask)
            texts = model.embed_captions(*captions)
        photos = self._grouped(photos)
        if classes is not None:
            names = self._by_group(model.embed_captions(*classes.captions))
            likeness = self._scale() * model.similarity(photos, names)
            terms = terms + self._class_loss(likeness, classes)
        return model.similarity(photos, self._grouped(texts, config.captions_a_photo)), terms

    def _by_group(self, part: Tensor) -> Tensor:
        """Of the classes of a step: (groups x K, ...) -> (groups, K, ...)."""
        return part.unflatten(0, (self._config.groups, self._config.classes_a_group))

    def _class_loss(self, likeness: Tensor, classes: NamedClasses) -> Tensor:
        return self._config.class_weight * agreement(likeness, classes.log_probabilities)

    def _pair_scores(
        self,
        regions: Tensor,
        region_mask: Tensor | None,
        captions: tuple[Tensor, ...],
        batch: Batch,
    ) -> tuple[Tensor, Tensor | float]:
        config, model, swaps = self._config, self.model, batch.swaps
        photo_sides = model.photo_side(regions, region_mask)
        photos = self._grouped(photo_sides)
        sides, mask = model.caption_side(*captions)
        if region_mask is not None:
            extra = region_mask.new_ones(len(region_mask), model.extra_positions)
            region_mask = self._grouped(torch.cat([extra, region_mask], 1))
        mask = self._grouped(mask, config.captions_a_photo)
        scores = model(
            photos,
            self._grouped(sides, config.captions_a_photo),
            mask,
            region_mask,
        )
        terms: Tensor | float = 0.0
        if config.gate_weight:
            easy = None
            if config.gate_hard < 1:
                easy = self._gates_across_groups(photo_sides, sides, mask, region_mask)
            terms = config.gate_weight * gate_loss(scores, mask, config, easy)
        if swaps is not None:
            true = scores.logit.diagonal(dim1=-2, dim2=-1).flatten()[swaps.photos]
            own = photo_sides[swaps.photos], region_mask
            terms = terms + config.swap_weight * self._swap_loss(true, *own, swaps)
        if batch.classes is not None:
            names, mask = (self._by_group(t) for t in model.caption_side(*batch.classes.captions))
            likeness = model(photos, names, mask, region_mask).logit
            terms = terms + self._class_loss(likeness, batch.classes)
        return scores.logit, terms

    def _gates_across_groups(
        self,
        photo_sides: Tensor,
        caption_sides: Tensor,
        mask: Tensor,
        region_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Mean gates of words and of regions, of each photo with a caption of the next group."""
        config = self._config
        if config.groups < 2 or config.captions_a_photo != 1:
            raise ValueError(
                f"gate_hard is {config.gate_hard}, which needs two groups or more and one caption "
                f"a photo; found {config.groups} and {config.captions_a_photo}: set it to 1",
            )
        captions, mask = (t.roll(config.group_size, 0) for t in (caption_sides, mask.flatten(0, 1)))
        if region_mask is not None:
            region_mask = region_mask.flatten(0, 1)[:, None]
        scores = self.model(photo_sides[:, None], captions[:, None], mask[:, None], region_mask)
        return mean_gates(scores, mask[:, None])

    def _swap_loss(
        self,
        true: Tensor,
        photo_sides: Tensor,
        region_mask: Tensor | None,
        swaps: SwappedCaptions,
    ) -> Tensor:
        """true (n,): logits of the captions as they are; each wrong one meets its photo alone."""
        sides, mask = self.model.caption_side(*swaps.captions)
        if region_mask is not None:
            region_mask = region_mask.flatten(0, 1)[swaps.photos][:, None]
        scores = self.model(photo_sides[:, None], sides[:, None], mask[:, None], region_mask)
        gates = scores.word_gates
        if gates is not None:
            gates = gates[:, 0, 0].gather(1, swaps.changed[:, None])[:, 0]
        return swapped(true, scores.logit[:, 0, 0], gates)

    def validate(self, model: nn.Module) -> dict[str, Any]:
        ours = Matcher(model, self._inputs)
        if self._embeds:
            encoded = encode_split(ours, None, self._validation, self._members)
            retrieval = evaluate_scores(encoded.stage1, self._members.photo_of_caption)
            return {"selection": retrieval.rsum, "stage1": retrieval.to_json()}
        stage1 = ours if can_be(model, "stage1") else self._stage1
        encoded = encode_split(stage1, ours, self._validation, self._members)
        reranked = Reranked.of(encoded, grid_scorer(model), self._config.validation_shortlist)
        chosen = reranked.choose_ranking()
        best = reranked.retrieval(chosen.stage1_weight)
        return {
            "selection": best.rsum,
            "rerank": best.to_json(),
            "scorer_alone": reranked.retrieval(0.0).to_json(),
            "ranking": dataclasses.asdict(chosen),
            "gates": reranked.gates(),
        }

    def save_best(self, weights: dict[str, Tensor], validation: dict[str, Any]) -> None:
        details = {**self._details, "epoch": validation["epoch"]}
        settings = self.model.config
        save_checkpoint(self._out, self._system, weights, settings, details, self._vocabulary)


def score_loss(
    scores: Tensor,
    config: Training,
    hardest: bool,
    scale: Tensor | float,
) -> Tensor | float:
    """The terms of the loss that look at scores: (groups, B, B x captions_a_photo)."""
    k = config.captions_a_photo
    loss: Tensor | float = 0.0
    if config.contrastive_weight:
        # With k captions a photo: k squares, each with one caption of every photo.
        squares = scores.unflatten(-1, (-1, k)).movedim(-1, -3)
        loss = loss + config.contrastive_weight * contrastive(scale * squares)
    if config.ranking_weight:
        hinge = ranking(scores, config.margin, hardest, config.reduction, k)
        loss = loss + config.ranking_weight * hinge
    if config.binary_weight:
        loss = loss + config.binary_weight * binary(scores, hardest, config.reduction)
    return loss


def mean_gates(scores: PairScores, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Of words and of regions, (groups, P, C) each. mask: (groups, C, N)."""
    if scores.word_gates is None or scores.region_gates is None:
        raise ValueError("gate_weight is above 0, but this system has no gates: set it to 0")
    return scores.word_gates.sum(-1) / mask[:, None].sum(-1), scores.region_gates.mean(-1)


def gate_loss(
    scores: PairScores,
    mask: Tensor,
    config: Training,
    easy: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Mean gates of words and of regions, each pushed apart. mask: (groups, C, N).

    easy: the same of mismatched pairs across groups.
    """
    sides = zip(mean_gates(scores, mask), easy or (None, None), strict=True)
    terms = [mean_gate_binary(g, config.gate_positive, e, config.gate_hard) for g, e in sides]
    return terms[0] + terms[1]


def confusable_groups(embeddings: np.ndarray, group_size: int) -> np.ndarray:
    """Parts a pool into groups: a photo and its nearest neighbours that are still free.

    embeddings: (pool, E) of unit length -> (pool // group_size, group_size) positions.
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
