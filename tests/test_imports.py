"""The arrows between the packages."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_app_runs_without_torch():
    modules = ["app.page", "app.search", "app.explain", "app.gallery", "matching.evaluate"]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("app", {"torch", "export", "onnx", "transformers"}),
        ("matching", {"app", "export"}),
        ("export", {"app"}),
    ],
)
def test_no_arrow_is_reversed(package, forbidden):
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] not in forbidden, f"{path} imports {name}"


def test_artifacts_hold_no_code():
    for folder in ("engines", "gallery", "checkpoints"):
        assert not list((ROOT / folder).rglob("*.py"))
