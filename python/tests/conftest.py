"""What tests share: other processes, masters of pools, and a directory where those of one host meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from masters import Master
from other import Other


@pytest.fixture(autouse=True)
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "run"
    monkeypatch.setenv("KVFERRY_RUN_DIR", str(directory))
    monkeypatch.setenv("KVFERRY_ADVERTISE_HOST", "127.0.0.1")
    return directory


@pytest.fixture
def another() -> Iterator[Callable[..., Other]]:
    """Starts processes, and ends those that are left."""
    started: list[Other] = []

    def start(role: Callable[..., None], *arguments: Any) -> Other:
        started.append(Other(role, *arguments))
        return started[-1]

    yield start
    for other in started:
        other.clean_up()


@pytest.fixture
def start() -> Iterator[Callable[..., Master]]:
    """Starts masters, and ends those that are left."""
    with ExitStack() as stack:

        def start(*command: str | Path, **environment: str) -> Master:
            master = Master(list(command), environment)
            stack.callback(master.clean_up)
            return master

        yield start
