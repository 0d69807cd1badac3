"""Memory that an interface shares with everybody, for as long as it is registered.

Whoever names memory by a key (its address, say) gives it back by that key, as often as it was registered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence

from .._errors import Error
from .._native import Region, process_registry

# How long memory that is given back waits for transfers that use it.
_PATIENCE_S = 1.0


def _open_to_all(region: Region) -> None:
    region.share("read_write")


class Shared:
    """What one engine or agent has registered. `open` lets peers at it: without, all of them may do all."""

    def __init__(self, open: Callable[[Region], None] | None = None) -> None:
        self._open = open or _open_to_all
        self._regions: dict[Hashable, list[Region]] = {}
        # Held around changes, never while anything waits.
        self._changing = threading.Lock()

    def register(self, ranges: Sequence[tuple[Hashable, int, int]]) -> None:
        """Shares memory: key, address and length of each range. All of it, or none."""
        done: list[Region] = []
        try:
            for _, address, length in ranges:
                done.append(process_registry().register_address(address, length))
                self._open(done[-1])
        except (Error, ValueError):
            for region in done:
                region.unregister(0.0)
            raise
        with self._changing:
            for (key, _, _), region in zip(ranges, done, strict=True):
                self._regions.setdefault(key, []).append(region)

    def allocate(self, length: int) -> int:
        """Shares memory of the engine's own. Its address is its key."""
        region = process_registry().allocate(length)
        self._open(region)
        with self._changing:
            self._regions.setdefault(region.address, []).append(region)
        return region.address

    def unregister(self, keys: Sequence[Hashable]) -> list[Hashable]:
        """Takes memory back: when this returns nothing touches it any more, unless it is registered still.
        Returns the keys under which there was none."""
        unknown, known = [], []
        with self._changing:
            for key in keys:
                regions = self._regions.get(key)
                if not regions:
                    unknown.append(key)
                    continue
                known.append(regions.pop())
                if not regions:
                    del self._regions[key]
        for region in known:
            region.unregister(_PATIENCE_S)
        return unknown

    def keys(self) -> list[Hashable]:
        """The keys under which there is memory."""
        with self._changing:
            return list(self._regions)

    def close(self) -> None:
        """Takes everything back, and cuts what uses it."""
        with self._changing:
            regions, self._regions = self._regions, {}
        for held in regions.values():
            for region in held:
                region.unregister(0.0)
