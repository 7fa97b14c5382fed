"""python -m matching.train NAME: trains a named configuration on prepared features.

Start it again after a kill and it goes on where it was. `python -m matching.train` lists the names.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from matching.allocation import keep_freed_memory
from matching.batches import ClassDraw, TrainingSet
from matching.caption_inputs import inputs_for
from matching.checkpoint import Checkpoint, load_checkpoint, record_metrics
from matching.command import run_command
from matching.config import EncoderConfig, Training, add_flags, settings_from_flags
from matching.datasets import Dataset, open_dataset
from matching.encode_features import Matcher, embed_photos
from matching.files import write_array
from matching.pair import tune_pair
from matching.presets import PRESETS
from matching.recipe import SystemRecipe
from matching.starting import start_from_checkpoint, start_from_stage1, train_only_fusion
from matching.systems import SYSTEMS, can_be, is_embedder, make_system
from matching.training import Trainer
from matching.vocabulary import Vocabulary

log = logging.getLogger(__name__)
DEFAULT_STAGE1 = Path("checkpoints/default/vse_infinity")


@dataclass(frozen=True)
class Job:
    """Everything that decides the result of a training run, and where it goes."""

    system: str
    model_config: EncoderConfig
    config: Training
    datasets: list[Dataset]  # the first one's `val` selects
    out: Path
    run_folder: Path
    stage1: Checkpoint | None = None
    start_from: Checkpoint | None = None
    vocabulary: Vocabulary | None = None
    bert: Path | None = None  # published weights (safetensors) of the word encoder `bert`
    tune: bool = True  # a pair scorer's final score behind stage 1 is chosen at the end


def train(job: Job) -> list[dict[str, Any]]:
    """Trains to the end; the best checkpoint by `val` is in job.out. Returns the validations."""
    inputs = inputs_for(job.model_config, job.vocabulary)
    data = TrainingSet(job.datasets, inputs, job.config.swap_weight > 0, _classes(job))
    details: dict[str, Any] = {
        "training": dataclasses.asdict(job.config),
        "train_photos": len(data),
        "backbone_sha256": data.backbone_sha256,
    }
    if job.stage1 is not None:
        details["stage1_sha256"] = job.stage1.sha256
    if job.start_from is not None:
        details["start_sha256"] = job.start_from.sha256
    stage1 = None if job.stage1 is None else Matcher.of(job.stage1)
    embeddings = None
    if job.stage1 is not None and (job.config.pool_size or job.config.start == "stage1"):
        embeddings = _photo_embeddings(job.stage1, data, job.run_folder)
    model = _started_model(job, embeddings)
    recipe = SystemRecipe(
        job.system,
        model,
        job.config,
        data,
        inputs,
        job.datasets[0],
        job.out,
        details,
        stage1,
        embeddings,
        job.vocabulary,
    )
    settings = {"system": job.system, "model": dataclasses.asdict(job.model_config), **details}
    history = Trainer(recipe, job.config, job.run_folder, settings).run()
    _record(job, model, history)
    return history


def _classes(job: Job) -> ClassDraw | None:
    if not job.config.class_weight:
        return None
    if job.model_config.word_encoder != "minilm":
        raise ValueError(
            f"class_weight is {job.config.class_weight}, but names of classes are only there for "
            f"the word encoder minilm, not {job.model_config.word_encoder}: set it to 0",
        )
    return ClassDraw(job.config.groups, job.config.classes_a_group)


def _started_model(job: Job, embeddings: np.ndarray | None) -> nn.Module:
    torch.manual_seed(job.config.seed)
    model = make_system(job.system, job.model_config)
    needs = {"stage1": job.stage1, "checkpoint": job.start_from}
    if job.config.start in needs and needs[job.config.start] is None:
        flag = {"stage1": "--stage1", "checkpoint": "--start-from"}[job.config.start]
        raise ValueError(f"start is {job.config.start}: give {flag} FOLDER, or --start scratch")
    if job.model_config.word_encoder == "minilm":
        model.text.load_pretrained()
    elif job.model_config.word_encoder == "bert" and job.bert is not None:
        model.text.load_published(*_bert_weights(job.bert))
    if job.config.start == "stage1":
        start_from_stage1(model, job.stage1.model, embeddings)
    elif job.config.start == "checkpoint":
        missing = start_from_checkpoint(model, job.start_from.model)
        log.info("%d tensors are new: %s", len(missing), ", ".join(missing))
    if job.config.trained == "fusion":
        train_only_fusion(model)
    return model


def _bert_weights(path: Path) -> tuple[dict[str, torch.Tensor], str]:
    """Published weights and what stands before their names."""
    try:
        weights = load_file(path)
    except (FileNotFoundError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read as safetensors ({error}): give --bert") from None
    return weights, "bert." if any(name.startswith("bert.") for name in weights) else ""


def _record(job: Job, model: nn.Module, history: list[dict[str, Any]]) -> None:
    """What the kept checkpoint reaches on `val`; for a pair scorer also the final score."""
    if is_embedder(model):
        best = max(history, key=lambda validation: validation["selection"])
        record_metrics(job.out, "val", {"stage1": best["stage1"]})
        return
    if not job.tune:
        return
    trained = load_checkpoint(job.out)
    stage1 = trained if can_be(trained.model, "stage1") else job.stage1
    tune_pair(stage1, trained, job.datasets[0])


def _photo_embeddings(stage1: Checkpoint, data: TrainingSet, run_folder: Path) -> np.ndarray:
    """Stage 1 of all training photos, which groups are drawn by; kept in the run folder."""
    path = run_folder / f"stage1-{stage1.sha256[:12]}.npy"
    if path.exists():
        return np.load(path)
    log.info("embedding %d training photos", len(data))
    embeddings = data.embed_photos(partial(embed_photos, Matcher.of(stage1)))
    write_array(path, embeddings)
    return embeddings


def vocabulary_for(config: EncoderConfig, path: Path | None, data: list[Dataset]) -> Any:
    """The given vocabulary, or one of the training captions, where the word encoder needs one."""
    if config.word_encoder not in ("bigru", "gru"):
        return None
    if path is not None:
        return Vocabulary.load(path)
    photos = (dataset.photos[p] for dataset in data for p in dataset.photos_of("train"))
    captions = [caption for photo in photos for caption in photo.captions]
    return Vocabulary.build(captions, with_mask=True)


def make_job(arguments: argparse.Namespace) -> Job:
    system = PRESETS[arguments.name].system
    datasets = [open_dataset(folder) for folder in arguments.features]
    model_config = settings_from_flags(SYSTEMS[system][1], arguments)
    vocabulary = vocabulary_for(model_config, arguments.vocabulary, datasets)
    model_config = dataclasses.replace(
        model_config,
        region_channels=datasets[0].region_shape[-1],
        vocabulary_size=0 if vocabulary is None else len(vocabulary),
    )
    config = settings_from_flags(Training, arguments)
    probe = make_system(system, model_config)
    own_stage1 = is_embedder(probe) or can_be(probe, "stage1")
    needs_stage1 = config.pool_size or config.start == "stage1" or not own_stage1
    stage1 = load_checkpoint(arguments.stage1, "stage1") if needs_stage1 else None
    start = None if arguments.start_from is None else load_checkpoint(arguments.start_from)
    return Job(
        system,
        model_config,
        config,
        datasets,
        arguments.out or Path("checkpoints") / arguments.name,
        arguments.run or Path("runs") / arguments.name,
        stage1,
        start,
        vocabulary,
        arguments.bert,
    )


def make_parser(name: str) -> argparse.ArgumentParser:
    preset = PRESETS[name]
    parser = argparse.ArgumentParser(
        prog="python -m matching.train",
        description=f"{name}: {preset.about}. Trains {preset.system} with these defaults.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("name", help="a named configuration")
    parser.add_argument(
        "--features",
        type=Path,
        nargs="+",
        required=True,
        help="feature folders to train on, ours or `precomp`; the first one's `val` selects",
    )
    parser.add_argument("--out", type=Path, help="checkpoint folder (checkpoints/NAME)")
    parser.add_argument("--run", type=Path, help="state that a killed run goes on from (runs/NAME)")
    parser.add_argument("--stage1", type=Path, default=DEFAULT_STAGE1)
    parser.add_argument("--start-from", type=Path, help="checkpoint, with --start checkpoint")
    parser.add_argument("--vocabulary", type=Path, help="of bigru and gru; else one is built")
    parser.add_argument("--bert", type=Path, help="of bert: its published weights, safetensors")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    for kind, defaults in (
        (SYSTEMS[preset.system][1], preset.model_config()),
        (Training, preset.training_config()),
    ):
        add_flags(parser.add_argument_group(kind.__name__), kind, defaults)
    return parser


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] not in PRESETS:
        names = "\n".join(f"  {name:34} {preset.about}" for name, preset in PRESETS.items())
        print(f"python -m matching.train NAME --features F [F ...]; NAME is one of\n{names}")
        return 0 if argv in ([], ["-h"], ["--help"]) else 2
    arguments = make_parser(argv[0]).parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    job = make_job(arguments)
    history = train(job)
    best = max(history, key=lambda v: v["selection"])
    if arguments.json:
        print(json.dumps({"out": str(job.out), "best": best, "history": history}))
    else:
        print(f"{job.out}: best of {len(history)} epochs was {best['epoch']}: {best}")
    return 0


if __name__ == "__main__":
    keep_freed_memory()
    sys.exit(run_command(main))
