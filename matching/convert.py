"""python -m matching.convert: a checkpoint of a paper's authors as a checkpoint folder of ours.

The file is read without running anything in it (matching.restricted_pickle). Weights keep their
full precision.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from matching.checkpoint import load_checkpoint, same_weights, save_checkpoint
from matching.command import run_command
from matching.conversion import camp, dive, scan, vse_infinity, vsrn
from matching.conversion.containers import read_container
from matching.conversion.keys import Converted
from matching.files import sha256_of
from matching.systems import parameters_in_millions
from matching.vocabulary import Vocabulary

CONVERTERS = {
    "camp": camp.convert,
    "vse_infinity": vse_infinity.convert,
    "dive": dive.convert,
    "scan": scan.convert_scan,
    "vsepp": scan.convert_vsepp,
    "vsrn": vsrn.convert,
}


def convert(kind: str, checkpoint: Path, vocabulary: Path | None, out: Path) -> Converted:
    """Converts a file of the authors of `kind` into the folder `out`."""
    if (out / "config.json").exists():
        raise FileExistsError(f"{out} holds a checkpoint already: give another --out")
    words = None if vocabulary is None else Vocabulary.load(vocabulary)
    converted = CONVERTERS[kind](read_container(checkpoint), words)
    source = {**converted.source, "sha256": sha256_of(checkpoint)}
    if converted.left_out:
        source["left_out"] = list(converted.left_out)
    save_checkpoint(
        out,
        converted.system,
        converted.weights,
        converted.config,
        {"converted_from": source},
        vocabulary=converted.vocabulary,
        half=False,
    )
    return converted


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m matching.convert", description=__doc__)
    parser.add_argument("kind", choices=list(CONVERTERS), help="whose checkpoint it is")
    parser.add_argument("checkpoint", type=Path, help="the authors' .pth or .pth.tar")
    parser.add_argument("--vocabulary", type=Path, help="the vocabulary published with it")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder to make")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    a = parser.parse_args(argv)
    converted = convert(a.kind, a.checkpoint, a.vocabulary, a.out)
    again = load_checkpoint(a.out)
    summary = {
        "out": str(a.out),
        "system": converted.system,
        "parameters_in_millions": parameters_in_millions(again.model),
        "left_out": list(converted.left_out),
    }
    left_out = f"; {len(converted.left_out)} weights left out" if converted.left_out else ""
    text = "{out}: {system} with {parameters_in_millions} million parameters".format(**summary)
    print(json.dumps(summary) if a.json else text + left_out)
    # What is read back must be what was converted, number by number.
    return 0 if same_weights(again.model.state_dict(), converted.weights) else 1


if __name__ == "__main__":
    sys.exit(run_command(main))
