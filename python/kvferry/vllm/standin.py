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
def swapped(where: ModuleType | dict[str, Any], **names: Any) -> Iterator[None]:
    """Has `names` of a module, or of a table, mean something else for the time of the block, in this whole
    process."""
    table = where if isinstance(where, dict) else vars(where)
    with _swapping:
        before = {name: table[name] for name in names if name in table}
        table.update(names)
        try:
            yield
        finally:
            table.update(before)
            for name in names.keys() - before.keys():
                del table[name]


@contextmanager
def affinity_kept() -> Iterator[None]:
    """Gives this thread the processors back that it had. vLLM's NIXL worker pins its thread to one core, for
    good, and every thread that is made later inherits that."""
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
