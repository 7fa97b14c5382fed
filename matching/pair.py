"""python -m matching.pair: the final score of a scorer behind a stage 1, chosen on `val`.

Any trained stage 1 goes with any trained scorer; what weight the two have in the final score, and
what probability it stands for, is kept in the scorer's config.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from matching.checkpoint import Checkpoint, load_checkpoint, record_metrics, record_ranking
from matching.command import run_command
from matching.datasets import Dataset, open_dataset
from matching.encode_features import Matcher, SplitMembers, encode_split, grid_scorer
from matching.reranked import Reranked, evaluate_reranked
from matching.shortlist import ShortlistSize


def tune_pair(
    stage1: Checkpoint,
    scorer: Checkpoint,
    dataset: Dataset,
    shortlist: ShortlistSize | None = None,
) -> dict[str, Any]:
    """Chooses on 1,000 photos of `val`, records the choice and what it reaches there."""
    members = SplitMembers.of(dataset, "val", limit=1000)
    encoded = encode_split(Matcher.of(stage1), Matcher.of(scorer), dataset, members)
    score = grid_scorer(scorer.model)
    reranked = Reranked.of(encoded, score, shortlist or ShortlistSize(100))
    ranking = reranked.choose_ranking()
    record_ranking(scorer.folder, stage1, ranking)
    document = evaluate_reranked(reranked, score, ranking)
    record_metrics(scorer.folder, f"val_behind_{stage1.system}", document)
    return {"ranking": dataclasses.asdict(ranking), **document}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.pair", description=__doc__)
    parser.add_argument("--stage1", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--scorer", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--features", type=Path, required=True, help="its `val` is used")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    stage1 = load_checkpoint(arguments.stage1, "stage1")
    scorer = load_checkpoint(arguments.scorer, "scorer")
    document = tune_pair(stage1, scorer, open_dataset(arguments.features))
    if arguments.json:
        print(json.dumps(document))
    else:
        ranking, rsum = document["ranking"], document["rerank"]["rsum"]
        print(
            f"{arguments.scorer}: behind {arguments.stage1} the final score is its logit + "
            f"{ranking['stage1_weight']:g} x stage 1; rsum {rsum} on val",
        )
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
