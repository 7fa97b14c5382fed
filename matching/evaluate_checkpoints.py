"""Evaluation of checkpoints in torch, from features on disk or from the photos; ensembles, too."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matching.captions import select_photos, write_captions
from matching.checkpoint import Checkpoint, load_checkpoint, ranking_of, record_metrics
from matching.datasets import Dataset, open_dataset
from matching.eccv_caption import evaluate_coco
from matching.encode_features import Matcher, SplitMembers, encode_split, grid_scorer
from matching.encoded import Encoded
from matching.ensemble import Directions, mean_of_directions
from matching.metrics import evaluate_directions, evaluate_folds
from matching.models.backbones import backbones_beside
from matching.prepare import prepare
from matching.reranked import Reranked, evaluate_reranked, evaluate_stage1


def evaluate_checkpoints(arguments: argparse.Namespace) -> dict[str, Any]:
    """arguments: those of python -m matching.evaluate."""
    stage1 = [load_checkpoint(folder, "stage1") for folder in arguments.stage1]
    scorers = [load_checkpoint(folder, "scorer") for folder in arguments.scorer or ()]
    with _dataset(arguments) as dataset:
        members = SplitMembers.of(
            dataset,
            arguments.split,
            arguments.limit,
            arguments.captions_a_photo,
        )
        pairs = _pairs(stage1, scorers)
        documents, directions = [], []
        for first, second in pairs:
            _check_backbone(dataset, first, *(() if second is None else (second,)))
            scorer = None if second is None else Matcher.of(second)
            encoded = encode_split(Matcher.of(first), scorer, dataset, members)
            document, scores = _evaluate(arguments, encoded, first, second)
            documents.append(document)
            if arguments.eccv or len(pairs) > 1:  # whole matrices: gigabytes on COCO 5K
                directions.append(scores())
            if arguments.eccv:
                document["eccv"] = evaluate_coco(dataset, members, directions[-1])
        _record(arguments, documents, pairs)
        if len(pairs) == 1:
            return documents[0]
        mean = mean_of_directions(directions)
        head = {name: documents[0][name] for name in ("photos", "captions")}
        document = {**head, "members": documents, **_recall("ensemble", mean, members, arguments)}
        if arguments.eccv:
            document["eccv"] = evaluate_coco(dataset, members, mean)
        return document


def _recall(
    name: str,
    scores: Directions,
    members: SplitMembers,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    inputs = (scores.by_photo, scores.by_caption, members.photo_of_caption)
    document: dict[str, Any] = {name: evaluate_directions(*inputs).to_json()}
    if arguments.folds > 1:
        inside = evaluate_folds(*inputs, arguments.folds)
        document["folds"] = {"count": arguments.folds, name: inside.to_json()}
    return document


def _pairs(
    stage1: list[Checkpoint],
    scorers: list[Checkpoint],
) -> list[tuple[Checkpoint, Checkpoint | None]]:
    """Each model of an ensemble: a stage 1 with its scorer; one stage 1 can serve them all."""
    if not scorers:
        return [(first, None) for first in stage1]
    if len(stage1) == 1:
        return [(stage1[0], scorer) for scorer in scorers]
    if len(stage1) != len(scorers):
        raise ValueError(
            f"an ensemble has a scorer for each stage 1, or one stage 1 for all: got {len(stage1)} "
            f"and {len(scorers)}",
        )
    return list(zip(stage1, scorers, strict=True))


def _evaluate(
    arguments: argparse.Namespace,
    encoded: Encoded,
    stage1: Checkpoint,
    scorer: Checkpoint | None,
) -> tuple[dict[str, Any], Callable[[], Directions]]:
    """The document of one model, and its scores of all pairs if they are asked for."""
    if scorer is None:
        document = evaluate_stage1(encoded, arguments.folds)
        return document, lambda: Directions(encoded.stage1, encoded.stage1)
    ranking = ranking_of(scorer, stage1)
    score = grid_scorer(scorer.model)
    reranked = Reranked.of(encoded, score, arguments.shortlist)
    document = evaluate_reranked(reranked, score, ranking, arguments.everything, arguments.folds)
    return document, lambda: reranked.directions(ranking.stage1_weight)


def _record(
    arguments: argparse.Namespace,
    documents: list[dict[str, Any]],
    pairs: list[tuple[Checkpoint, Checkpoint | None]],
) -> None:
    if arguments.record is None:
        return
    for document, (stage1, scorer) in zip(documents, pairs, strict=True):
        head = {key: document[key] for key in ("photos", "captions", "stage1")}
        record_metrics(stage1.folder, arguments.record, head)
        if scorer is not None:
            name = f"{arguments.record}_behind_{stage1.system}"
            record_metrics(scorer.folder, name, document)


def _check_backbone(dataset: Dataset, *checkpoints: Checkpoint) -> None:
    for checkpoint in checkpoints:
        expected = checkpoint.config.get("backbone_sha256", dataset.backbone_sha256)
        if dataset.backbone_sha256 != expected:
            raise ValueError(
                f"{dataset.folder} was made with another backbone than {checkpoint.folder}: "
                "run python -m matching.prepare again",
            )


@contextmanager
def _dataset(arguments: argparse.Namespace) -> Iterator[Dataset]:
    if arguments.features is not None:
        yield open_dataset(arguments.features)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        selected = select_photos(
            arguments.captions,
            arguments.split,
            arguments.limit,
            arguments.captions_a_photo,
        )
        write_captions(folder / "captions.jsonl", selected)
        backbones = backbones_beside(arguments.stage1[0])
        prepare(folder / "captions.jsonl", arguments.photos, folder / "features", backbones)
        yield open_dataset(folder / "features")
