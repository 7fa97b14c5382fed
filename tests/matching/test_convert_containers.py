"""The files themselves, whatever system they hold."""

import os

import pytest
import torch

from matching.command import run_command
from matching.conversion.containers import describe, read_container
from matching.convert import main
from tests.matching.authors_files import linear_shapes, save_list, weights_of


def test_module_prefixes_are_taken_off_once(tmp_path):
    image = weights_of(linear_shapes("fc", 3, 2) | {"cnn.module.conv.weight": (2,)})
    path = save_list(tmp_path / "a.pth", [image, {"embed.weight": torch.ones(5, 2)}], {}, "module.")
    container = read_container(path)
    assert list(container.part("image")) == ["fc.weight", "fc.bias", "cnn.module.conv.weight"]
    assert container.progress == {"epoch": 15, "best_rsum": 412.5, "Eiters": 9}
    assert describe(container) == "SCAN or VSE++"
    with pytest.raises(ValueError, match="a.pth holds SCAN or VSE.*there is no scorer part"):
        container.part("scorer")


def test_a_bare_state_dict_is_read(tmp_path):
    torch.save(
        {"module.img_enc.fc.weight": torch.ones(2), "txt_enc.x": torch.ones(1)}, tmp_path / "a.pth"
    )
    container = read_container(tmp_path / "a.pth")
    assert list(container.parts["image"]) == ["fc.weight"] and list(container.parts["text"]) == [
        "x"
    ]
    torch.save(
        {"img_enc.a": torch.ones(1), "txt_enc.b": torch.ones(1), "scale": torch.ones(1)},
        tmp_path / "a.pth",
    )
    with pytest.raises(ValueError, match="a.pth has an unknown weight 'scale'"):
        read_container(tmp_path / "a.pth")


@pytest.mark.parametrize(
    "document",
    [
        {"epoch": 3},
        {"model": [{"a": torch.ones(1)}]},
        {"model": [{"a": torch.ones(1)}, {}]},
        {"model": [{"a": torch.ones(1)}, {"b": 3}]},
        [1, 2],
        torch.ones(3),
    ],
)
def test_a_file_without_weights_is_named(tmp_path, document):
    torch.save(document, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="a.pth holds no weights"):
        read_container(tmp_path / "a.pth")


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("zipped", [True, False])
def test_the_command_runs_nothing_of_the_file(tmp_path, capsys, zipped):
    path = tmp_path / "bad.pth"
    document = {"model": [{"fc.weight": torch.ones(1)}], "opt": Attack(tmp_path / "trace")}
    torch.save(document, path, _use_new_zipfile_serialization=zipped)
    assert run_command(lambda: main(["scan", str(path), "--out", str(tmp_path / "out")])) == 2
    assert "bad.pth names posix.system" in capsys.readouterr().err
    assert not (tmp_path / "trace").exists()
