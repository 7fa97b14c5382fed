"""What several packages of tests need and is slow to make: made once a session."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A folder with checkpoints/ and engines/ of tiny_engines.build_tiny_engines."""
    from tests.tiny_engines import build_tiny_engines  # torch, only where it is needed

    return build_tiny_engines(tmp_path_factory.mktemp("tiny"))
