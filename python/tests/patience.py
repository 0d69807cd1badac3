"""Waiting for what has to come about, with a deadline and no fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 60.0


def until(what: Callable[[], object]) -> None:
    """Returns once it is so."""
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)
