"""Servers that tests share, and where their logs go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import HOME


@pytest.fixture(scope="session")
def logs() -> Path:
    """Where servers log to: kept, to be read after a failure."""
    directory = HOME.parent / "vllm-logs" / time.strftime("%Y%m%d-%H%M%S")
    directory.mkdir(parents=True)
    print(f"logs are in {directory}")
    return directory


@pytest.fixture(autouse=True)
def times(request: pytest.FixtureRequest) -> Iterator[None]:
    """Prints how long each test takes."""
    began = time.monotonic()
    yield
    print(f"{request.node.name}: {time.monotonic() - began:.1f} s")
