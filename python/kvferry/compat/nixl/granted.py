"""An agent for programs that agree on each write: its memory is written by leave only.

Whoever wants blocks grants them to an agent for a time (`GrantedAgent.grant`), and tells it by a channel of
the program's; who writes says by whose leave (`GrantedAgent.by_leave`). Made for vLLM's push connector
(`kvferry.vllm.nixl`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..._native import Descriptors, Region, RemoteGrant
from .._kept import Grants, Latest
from ._api import nixl_agent

__all__ = ["GrantedAgent"]

GATHERED = 4096
"""For how many purposes grants may wait for those of others."""

_leaves: ContextVar[Mapping[str, int]] = ContextVar("leaves", default={})  # noqa: B039
"""The grants under which is written just now."""


def _between(owner: int, writer: int) -> str:
    """Who lets whom write, by their engines' incarnations."""
    return f"{owner:x}.{writer:x}"


class GrantedAgent(nixl_agent):
    """An agent whose memory is written by leave only. Grants are named by who lets whom write."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.grants = Grants()
        """What others may write now, by what it was granted for."""
        self._gathered: Latest[str, dict[str, int]] = Latest(GATHERED)
        super().__init__(*arguments, **settings)

    def open(self, region: Region) -> None:
        """Tells peers where the memory is. What they may write of it each grant says."""
        region.layout(len(region), 1).publish(f"vllm.{region.address:x}")

    def grant(
        self, purpose: str, prepared: Any, which: Callable[[], Any], agents: Iterable[str], ttl: float
    ) -> dict[str, int]:
        """Lets other agents write some of a prepared list, for a time in seconds: `which` gives the indices,
        or None where the purpose is over, and nothing is revoked meanwhile. Returns who may write what."""
        named = {}
        with self.grants.giving(purpose) as given:
            if (indices := which()) is None:
                return {}
            rows = np.frombuffer(prepared.use().to_bytes(), dtype=np.uint64).reshape(-1, 3)[indices]
            ranges = Descriptors.from_rows(np.ascontiguousarray(rows))
            for agent in agents:
                writer = self._remotes.get(agent).incarnation
                grant = self.engine.grant(ranges, writer, "write", ttl)
                given.append(grant)
                named[_between(self.engine.incarnation, writer)] = grant.id
        return named

    def gather(self, purpose: str, grants: Mapping[str, int], agents: int) -> dict[str, int] | None:
        """Keeps what several agents grant for a purpose, until so many have let this one write: all of it
        then. On one thread at a time."""
        gathered = {**self._gathered.get(purpose, {}), **grants}
        if sum(pair.endswith(f".{self.engine.incarnation:x}") for pair in gathered) < agents:
            self._gathered[purpose] = gathered
            return None
        self._gathered.pop(purpose, None)
        return gathered

    @contextmanager
    def by_leave(self, grants: Mapping[str, int]) -> Iterator[None]:
        """What this thread writes within the block, it writes under these grants."""
        before = _leaves.set(grants)
        try:
            yield
        finally:
            _leaves.reset(before)

    def leave_of(self, remote: Any) -> RemoteGrant | None:
        """The grant under which another agent's memory is written just now."""
        grant = _leaves.get().get(_between(remote.incarnation, self._engine.incarnation))
        return RemoteGrant.named(remote.incarnation, grant, "write") if grant is not None else None
