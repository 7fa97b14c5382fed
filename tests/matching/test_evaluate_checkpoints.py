"""Any stage 1 with any scorer from the command line, and ensembles of them."""

import json

import numpy as np
import pytest

from matching import evaluate, pair, train
from matching.checkpoint import load_checkpoint
from matching.encode_features import Matcher, SplitMembers, encode_split
from matching.features import Features
from matching.metrics import evaluate_scores
from tests.matching.tiny_features import write_tiny_features

SMALL = [
    "--epochs",
    "1",
    "--groups",
    "1",
    "--group-size",
    "8",
    "--dimension",
    "16",
    "--hidden",
    "8",
]
OWN = {
    "vse_infinity": [],
    "dive": ["--head-dimension", "8", "--feed-forward", "16"],
    "camp": ["--key-dimension", "8", "--pool-size", "16"],
    "scan_t2i": ["--pool-size", "16"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    write_tiny_features(root / "features", train=20, val=8, test=8)
    for name, flags in OWN.items():
        places = ["--out", str(root / name), "--run", str(root / "runs" / name)]
        stage1 = ["--stage1", str(root / "vse_infinity")]
        features = ["--features", str(root / "features")]
        assert train.main([name, *features, *places, *stage1, *SMALL, *flags]) == 0
    return root


def document(capsys, folder, *flags):
    capsys.readouterr()
    assert evaluate.main(["--features", str(folder / "features"), "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_pair_needs_its_final_score_first(folder, capsys):
    models = ["--stage1", str(folder / "dive"), "--scorer", str(folder / "scan_t2i")]
    with pytest.raises(ValueError, match="matching.pair"):
        document(capsys, folder, *models)
    assert pair.main([*models, "--features", str(folder / "features")]) == 0
    found = document(capsys, folder, *models, "--shortlist", "25%", "--record", "test")
    assert found["shortlist"]["photos"] == 2 and found["shortlist"]["captions"] == 3
    assert found["gates"] == {}  # SCAN has none
    metrics = json.loads((folder / "scan_t2i" / "metrics.json").read_text())
    assert metrics["test_behind_dive"] == found


def test_stage_1_alone_equals_its_similarities(folder, capsys):
    found = document(capsys, folder, "--stage1", str(folder / "dive"))
    features = Features(folder / "features")
    members = SplitMembers.of(features, "test", 8)
    encoded = encode_split(Matcher.of(load_checkpoint(folder / "dive")), None, features, members)
    assert found["stage1"] == evaluate_scores(encoded.stage1, members.photo_of_caption).to_json()


def test_an_ensemble_is_the_mean_of_its_members(folder, capsys):
    models = [folder / "vse_infinity", folder / "dive"]
    found = document(capsys, folder, "--stage1", *map(str, models))
    features = Features(folder / "features")
    members = SplitMembers.of(features, "test", 8)
    scores = [
        encode_split(Matcher.of(load_checkpoint(m)), None, features, members).stage1 for m in models
    ]
    expected = evaluate_scores(np.mean(scores, 0), members.photo_of_caption).to_json()
    assert found["ensemble"] == expected
    assert len(found["members"]) == 2 and found["members"][0]["stage1"] != found["members"][1]


def test_two_scorers_behind_one_stage_1(folder, capsys):
    stage1 = ["--stage1", str(folder / "vse_infinity")]
    scorers = ["--scorer", str(folder / "camp"), str(folder / "scan_t2i")]
    found = document(capsys, folder, *stage1, *scorers, "--folds", "2")
    assert found["folds"]["count"] == 2 and 0 < found["ensemble"]["rsum"] <= 600
    assert all("rerank" in member for member in found["members"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--scorer", "x"], "--scorer goes with"),
        (["--stage1", "x", "--checkpoint", "y"], "one or the other"),
        (["--eccv"], "--eccv goes with"),
    ],
)
def test_flags_that_do_not_go_together(flags, message, capsys):
    with pytest.raises(SystemExit) as ended:
        evaluate.main(["--captions", "c", "--photos", "p", *flags])
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_a_system_without_embeddings_is_no_stage_1(folder, capsys):
    with pytest.raises(ValueError, match="cannot be stage1"):
        document(capsys, folder, "--stage1", str(folder / "camp"))
