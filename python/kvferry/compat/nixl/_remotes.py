"""The other agents that an agent knows."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ..._errors import Error
from ..._native import Descriptors, Engine, Peer
from ._errors import (
    as_nixl,
    nixlInvalidParamError,
    nixlNotFoundError,
    nixlRemoteDisconnectError,
)
from ._metadata import Metadata


@dataclass
class Remote:
    """Another agent, as one incarnation of its engine."""

    name: str
    peer: Peer
    incarnation: int
    #: The ranges that its metadata told of; None for all that it registers, now and later.
    scope: Descriptors | None

    def is_there(self) -> bool:
        """Whether the same engine is still reached."""
        return self.peer.incarnation == self.incarnation

    def find(self, descriptors: Descriptors) -> int | None:
        """The first range that it does not share, as far as its metadata goes."""
        if self.scope is not None and (outside := descriptors.first_outside(self.scope)) is not None:
            return outside
        return descriptors.first_unshared(self.peer)

    def follow(self, descriptors: Descriptors) -> int | None:
        """As `find`, having asked the agent where something is missing."""
        if (missing := self.find(descriptors)) is None:
            return None
        try:
            self.peer.ready()
        except Error as error:
            raise as_nixl(error) from error
        missing = self.find(descriptors)
        return missing


class Remotes:
    """All of them, by name."""

    def __init__(self, own_name: str, engine: Engine) -> None:
        self._own_name = own_name
        self._engine = engine
        self._known: dict[str, Remote] = {}
        self._changing = threading.Lock()

    def load(self, metadata: Metadata) -> str:
        """Gets to know an agent, or more of one that is known. Connects to it."""
        if metadata.name == self._own_name:
            raise nixlInvalidParamError(f"{metadata.name!r} is this agent's own name")
        known = self._known.get(metadata.name)
        is_same = known is not None and known.incarnation == metadata.incarnation
        if not is_same and not metadata.introduces:
            raise nixlNotFoundError(
                f"{metadata.name!r} is not known yet: load metadata with connection info first"
            )
        remote = self._connect(metadata.name, metadata.address, metadata.incarnation)
        remote.scope = metadata.scope
        if is_same and known is not None:
            remote.scope = _both(known.scope, metadata.scope)
        with self._changing:
            # Handles of the same agent stay good: they hold this very object.
            if is_same and known is not None and self._known.get(metadata.name) is known:
                known.scope = remote.scope
            else:
                self._known[metadata.name] = remote
        return metadata.name

    def get(self, name: str) -> Remote:
        """The agent of this name. Its own name is this agent, reached as any other."""
        if (known := self._known.get(name)) is not None:
            return known
        if name != self._own_name:
            raise nixlNotFoundError(f"no agent {name!r} is known: load its metadata first")
        remote = self._connect(name, self._engine.address, self._engine.incarnation)
        with self._changing:
            return self._known.setdefault(name, remote)

    def find(self, name: str) -> Remote | None:
        """The agent of this name, if it is known."""
        return self._known.get(name)

    def forget(self, name: str, incarnation: int | None = None) -> bool:
        """Forgets an agent; only that incarnation of it, where one is given."""
        with self._changing:
            known = self._known.get(name)
            if known is None or (incarnation is not None and known.incarnation != incarnation):
                return False
            del self._known[name]
            return True

    def _connect(self, name: str, address: str, incarnation: int) -> Remote:
        try:
            peer = self._engine.connect(address)
        except Error as error:
            raise as_nixl(error) from error
        if (found := peer.incarnation) != incarnation:
            raise nixlRemoteDisconnectError(
                f"{name!r} at {address} is not there any more: the metadata is of incarnation "
                f"{incarnation:016x}, {'nobody' if found is None else f'{found:016x}'} answers"
            )
        return Remote(name, peer, incarnation, None)


def _both(one: Descriptors | None, other: Descriptors | None) -> Descriptors | None:
    if one is None or other is None:
        return None
    return Descriptors.from_bytes(one.to_bytes() + other.to_bytes())
