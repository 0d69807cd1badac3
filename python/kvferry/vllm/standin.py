"""Names of vLLM's modules that stand for ours while its constructors run, and go back to what they were."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

# A process may build several connectors (MultiConnector), from several threads in tests.
_swapping = threading.RLock()


@contextmanager
def swapped(module: ModuleType, **names: Any) -> Iterator[None]:
    """Has `names` of `module` mean something else for the time of the block, in this whole process."""
    with _swapping:
        absent = {name for name in names if name not in vars(module)}
        before = {name: vars(module)[name] for name in names.keys() - absent}
        vars(module).update(names)
        try:
            yield
        finally:
            vars(module).update(before)
            for name in absent:
                del vars(module)[name]


@contextmanager
def affinity_kept() -> Iterator[None]:
    """Gives this thread the processors back that it had. vLLM's NIXL worker pins its thread to one core, for
    good, and every thread that is made later inherits that."""
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
