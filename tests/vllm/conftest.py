"""Servers that tests share, and where their logs go."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from servers import HOME

LOGS = HOME.parent / "vllm-logs" / time.strftime("%Y%m%d-%H%M%S")


@pytest.fixture(scope="session")
def logs() -> Path:
    """Where servers log to: kept, to be read after a failure."""
    LOGS.mkdir(parents=True)
    print(f"logs are in {LOGS}")
    return LOGS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds to what is said of a failure how the logs end: they may be on a machine that is gone."""
    report = yield
    if report.failed:
        for log in sorted(LOGS.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()
            told = [line[:300] for line in lines if " HTTP/1.1" not in line][-25:]
            report.sections.append((f"the end of {log.name}", "\n".join(told)))
    return report


@pytest.fixture(autouse=True)
def times(request: pytest.FixtureRequest) -> Iterator[None]:
    """Prints how long each test takes."""
    began = time.monotonic()
    yield
    print(f"{request.node.name}: {time.monotonic() - began:.1f} s")
