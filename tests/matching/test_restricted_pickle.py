"""Pickles are read without running anything they name."""

import argparse
import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch

from matching.restricted_pickle import load_pickle, load_torch_checkpoint
from tests.matching.authors_files import EasyDict, provide_easydict


class Attack:
    """Runs a command when an ordinary reader opens its pickle."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class BuiltinAttack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return eval, (f"open({str(self.path)!r}, 'w')",)


def weights():
    return OrderedDict([("fc.weight", torch.arange(6.0).reshape(2, 3)), ("fc.bias", torch.ones(2))])


@pytest.mark.parametrize("zipped", [True, False])
def test_checkpoints_of_both_forms_are_read(tmp_path, zipped, monkeypatch):
    provide_easydict(monkeypatch)
    path = tmp_path / "model_best.pth.tar"
    settings = argparse.Namespace(embed_size=1024, lr=0.1)
    document = {
        "epoch": 3,
        "model": [weights(), weights()],
        "best_rsum": np.float64(412.5),
        "opt": EasyDict({"data_name": "f30k"}),
        "args": settings,
    }
    torch.save(document, path, _use_new_zipfile_serialization=zipped)
    assert zipfile.is_zipfile(path) == zipped
    read = load_torch_checkpoint(path)
    assert torch.equal(read["model"][1]["fc.weight"], torch.arange(6.0).reshape(2, 3))
    assert read["best_rsum"] == 412.5 and read["epoch"] == 3
    assert read["opt"] == {"data_name": "f30k"} and read["args"] == settings


@pytest.mark.parametrize("attack", [Attack, BuiltinAttack])
@pytest.mark.parametrize("form", ["pickle", "zip", "old"])
def test_an_attack_is_refused_and_not_run(tmp_path, attack, form):
    path, trace = tmp_path / "bad.pth", tmp_path / "trace"
    if form == "pickle":
        path.write_bytes(pickle.dumps({"word2idx": attack(trace)}))
        reader = load_pickle
    else:
        document = {"model": weights(), "opt": attack(trace)}
        torch.save(document, path, _use_new_zipfile_serialization=form == "zip")
        reader = load_torch_checkpoint
    with pytest.raises(ValueError, match=r"bad.pth names (posix.system|\S*eval), .* was not run"):
        reader(path)
    assert not trace.exists()
    pickle.loads(pickle.dumps(attack(trace)))  # an ordinary reader does run it
    assert trace.exists()


def test_a_way_around_through_an_allowed_name_is_refused(tmp_path):
    path = tmp_path / "bad.pkl"
    # Protocol 4 may name attributes of attributes.
    name, attribute = b"argparse", b"Namespace.__init__.__globals__"
    text = b"\x80\x04\x8c" + bytes([len(name)]) + name
    path.write_bytes(text + b"\x8c" + bytes([len(attribute)]) + attribute + b"\x93.")
    with pytest.raises(ValueError, match="names argparse.Namespace.__init__.__globals__"):
        load_pickle(path)


def test_a_scalar_of_objects_is_refused(tmp_path):
    path = tmp_path / "bad.pkl"
    path.write_bytes(pickle.dumps(np.dtype("O"), 2))
    with pytest.raises(ValueError, match="'O8' is refused"):
        load_pickle(path)


@pytest.mark.parametrize("value", [np.float64(1.5), np.float32(-2.25), np.int64(7), np.bool_(True)])
@pytest.mark.parametrize("protocol", [2, 4])
def test_numpy_scalars_become_numbers(tmp_path, value, protocol):
    path = tmp_path / "scalar.pkl"
    path.write_bytes(pickle.dumps([value], protocol))
    assert load_pickle(path) == [value.item()]


@pytest.mark.parametrize("reader", [load_pickle, load_torch_checkpoint])
def test_a_damaged_file_is_named(tmp_path, reader):
    path = tmp_path / "cut.pth"
    torch.save({"model": weights()}, path)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match="cut.pth is damaged or not a pickle"):
        reader(path)
    with pytest.raises(FileNotFoundError, match="none.pth is missing"):
        reader(tmp_path / "none.pth")
