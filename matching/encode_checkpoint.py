"""Encodes a split with checkpoints in torch: from features on disk, or from the photos."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from matching.captions import select_photos, write_captions
from matching.checkpoint import load_checkpoint
from matching.encode_features import SplitMembers, encode_split, grid_scorer
from matching.encoded import Encoded, ScoreGrid
from matching.features import Features
from matching.prepare import prepare
from matching.ranking import Ranking


def encode_with_checkpoint(arguments: argparse.Namespace) -> tuple[Encoded, ScoreGrid, Ranking]:
    """arguments: those of python -m matching.evaluate."""
    if arguments.features is not None:
        encoded, camp = _encode(arguments, Features(arguments.features))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            selected = select_photos(
                arguments.captions,
                arguments.split,
                arguments.limit,
                arguments.captions_a_photo,
            )
            write_captions(folder / "captions.jsonl", selected)
            prepare(folder / "captions.jsonl", arguments.photos, folder / "features")
            encoded, camp = _encode(arguments, Features(folder / "features"))
    return encoded, grid_scorer(camp.model), Ranking(**camp.config["ranking"])


def _encode(arguments: argparse.Namespace, features: Features):
    stage1 = load_checkpoint(arguments.checkpoint / "vse_infinity", "vse_infinity")
    camp = load_checkpoint(arguments.checkpoint / "camp", "camp")
    if features.backbone_sha256 != camp.config["backbone_sha256"]:
        raise ValueError(
            f"{features.folder} was made with another backbone than {arguments.checkpoint}: "
            "run python -m matching.prepare again",
        )
    members = SplitMembers.of(
        features,
        arguments.split,
        arguments.limit,
        arguments.captions_a_photo,
    )
    return encode_split(stage1.model, camp.model, features, members), camp
