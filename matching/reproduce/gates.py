"""CAMP, section 4.4: mean gates of matching and of mismatched pairs."""

from __future__ import annotations

from matching.checkpoint import load_checkpoint
from matching.encode_features import Matcher, SplitMembers, encode_split, grid_scorer
from matching.encoded import random_pair_gates
from matching.reproduce.experiment import Setting
from matching.reproduce.report import Report, cell
from matching.reranked import Reranked

_PHOTOS = 1000


def run(setting: Setting) -> Report:
    gates = cell(setting.work / "cells", "gates", lambda: _measure(setting))
    rows = [
        [
            side,
            f"{gates[f'{side}_matching']:.3f}",
            f"{gates[f'{side}_mismatched']:.3f}",
            f"{gates[f'{side}_mismatched_hard']:.3f}",
        ]
        for side in ("word", "region")
    ]
    rows.append(["paper, both together", "0.971", "2.7e-9", "not reported"])
    apart = min(gates[f"{s}_matching"] / gates[f"{s}_mismatched"] for s in ("word", "region"))
    return Report(
        "gates",
        "CAMP: gates of matching and mismatched pairs",
        f"{setting.scorer} behind {setting.stage1}, the first {setting.photos or _PHOTOS} photos "
        "of `test` with five captions each. Means over the words and over the regions of a pair, "
        "padding left out; mismatched pairs are 2,000 drawn at random, the hard ones are what "
        "stage 1 lists for the caption.",
        ["gates of", "matching", "mismatched, random", "mismatched, top 100 of stage 1"],
        rows,
        f"The order {'holds' if apart > 1 else 'does NOT hold'}: gates of matching pairs are at "
        f"least {apart:.1f} times as open as those of random mismatched ones; in the paper 0.971 "
        "against 2.7e-9.",
        "python -m matching.reproduce gates --features cache/coco256",
        [
            "A gate is sigmoid(scale x agreement + bias) with one number a word or region, as in "
            "the authors' code. The paper's 2.7e-9 needs logits of -19.7 for all of them.",
        ],
        figures=gates,
    )


def _measure(setting: Setting) -> dict[str, float]:
    stage1 = load_checkpoint(setting.stage1, "stage1")
    scorer = load_checkpoint(setting.scorer, "scorer")
    dataset = setting.dataset()
    members = SplitMembers.of(dataset, "test", setting.photos or _PHOTOS)
    encoded = encode_split(Matcher.of(stage1), Matcher.of(scorer), dataset, members)
    score = grid_scorer(scorer.model)
    gates = {**Reranked.of(encoded, score, 100).gates(), **random_pair_gates(encoded, score)}
    if not gates:
        raise ValueError(f"{setting.scorer} has no gates: give a CAMP checkpoint with --scorer")
    return gates
