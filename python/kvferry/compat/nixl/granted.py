"""An agent for programs that agree on each write: its memory is written by leave only.

Whoever wants blocks grants them to an agent for a time (`GrantedAgent.grant`), and tells it by a channel of
the program's; who writes says by whose leave (`GrantedAgent.by_leave`). Made for vLLM's push connector
(`kvferry.vllm.nixl`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..._native import Descriptors, Grant, Region, RemoteGrant
from ._api import nixl_agent

__all__ = ["GrantedAgent"]

_leaves: ContextVar[Mapping[str, int]] = ContextVar("leaves", default={})  # noqa: B039
"""The grants under which is written just now."""


def _between(owner: int, writer: int) -> str:
    """Who lets whom write, by their engines' incarnations."""
    return f"{owner:x}.{writer:x}"


class GrantedAgent(nixl_agent):
    """An agent whose memory is written by leave only. Grants are named by who lets whom write."""

    def open(self, region: Region) -> None:
        """Tells peers where the memory is. What they may write of it each grant says."""
        region.layout(len(region), 1).publish(f"vllm.{region.address:x}")

    def grant(self, prepared: Any, indices: Any, agent: str, ttl: float) -> tuple[str, Grant]:
        """Lets another agent write some of a prepared list, for a time in seconds."""
        writer = self._remotes.get(agent).incarnation
        rows = np.frombuffer(prepared.use().to_bytes(), dtype=np.uint64).reshape(-1, 3)[indices]
        ranges = Descriptors.from_rows(np.ascontiguousarray(rows))
        owner = self._engine.incarnation
        return _between(owner, writer), self._engine.grant(ranges, writer, "write", ttl)

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

    def count_leaves(self, grants: Mapping[str, int]) -> int:
        """From how many agents these let this one write."""
        return sum(pair.endswith(f".{self._engine.incarnation:x}") for pair in grants)
