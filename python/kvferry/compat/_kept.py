"""What is kept only so far: the latest entries of a mapping, peers among them, and grants until they are
taken back."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from .._native import Engine, Grant, Peer

K = TypeVar("K")
V = TypeVar("V")


class Latest(OrderedDict[K, V]):
    """A mapping that forgets what was set or `use`d longest ago, beyond so many entries."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self.most:
            self.popitem(last=False)

    def use(self, key: K) -> V:
        """The value of a key that there is, which is kept for longer now."""
        self.move_to_end(key)
        return self[key]


class Peers(Latest[str, Peer]):
    """The peers of an engine by their addresses: of more than 4,096, those that were asked for longest ago
    are connected to anew. On one thread at a time."""

    def __init__(self) -> None:
        super().__init__(4096)

    def of(self, engine: Engine, address: str) -> Peer:
        """The peer at an address."""
        if address not in self:
            self[address] = engine.peer(address)
        return self.use(address)


class Grants:
    """Grants by what they were given for: all for one purpose are revoked at once. From any thread."""

    def __init__(self) -> None:
        self._held: dict[str, list[Grant]] = {}
        self._changing = threading.Lock()

    def __len__(self) -> int:
        """For how many purposes something is granted."""
        return len(self._held)

    def held_for(self, purpose: str) -> list[Grant]:
        """What is granted for a purpose."""
        return list(self._held.get(purpose, ()))

    @contextmanager
    def giving(self, purpose: str) -> Iterator[list[Grant]]:
        """Has grants be added for a purpose, to the list of the block. Nothing is revoked meanwhile: that a
        purpose is over is seen within the block, or what was given is taken back after it."""
        with self._changing:
            given: list[Grant] = []
            try:
                yield given
            finally:
                if given:
                    self._held.setdefault(purpose, []).extend(given)

    def revoke(self, purpose: str) -> list[Grant]:
        """Takes back what was granted for a purpose: nobody can use it any more when this returns."""
        with self._changing:
            revoked = self._held.pop(purpose, [])
            for grant in revoked:
                grant.revoke()
        return revoked
