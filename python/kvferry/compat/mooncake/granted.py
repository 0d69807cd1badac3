"""A transfer engine with Mooncake's calls for programs that agree on each write: memory that is registered is
written by leave only.

Whoever wants blocks grants them to one peer for a time, and names the grant behind its host,
``HOST#INCARNATION.GRANT``, where the writer has the address of a write from: `Session`. So it can take the
blocks back for certain, and nobody writes without being asked. Its calls raise what keeps it from starting;
writes return codes. Made for vLLM's Mooncake connector (`kvferry.vllm.mooncake`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._errors import Error
from ..._native import Descriptors, Engine, Peer, Region, RemoteGrant, process_registry
from .._kept import Grants, Peers
from ._types import check_metadata_server, rdma_devices, transport

__all__ = ["GrantedEngine", "Session", "SessionError", "ranges", "spans_of"]

logger = logging.getLogger(__name__)


class SessionError(ValueError):
    """The address of a write names no grant: who wants to be written to is none of kvferry's."""


@dataclass(frozen=True)
class Session:
    """Where a write goes, and by whose leave."""

    address: str
    owner: int
    grant: int

    @staticmethod
    def mark(owner: int, grant: int) -> str:
        """What who grants appends to its host."""
        return f"#{owner:x}.{grant:x}"

    @classmethod
    def parse(cls, text: str) -> Session:
        """Reads ``HOST#INCARNATION.GRANT:PORT``."""
        host, _, port = text.rpartition(":")
        host, _, mark = host.partition("#")
        owner, _, grant = mark.partition(".")
        try:
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            return cls(address, int(owner, 16), int(grant, 16))
        except ValueError:
            raise SessionError(
                f"{text!r} names no grant: the decode instance runs vLLM's own MooncakeConnector or another "
                "kvferry; prefill and decode instances need the same kvferry"
            ) from None


def ranges(addresses: Any, lengths: Any) -> Descriptors:
    """Ranges of memory, from two sequences or arrays of the same length."""
    rows = np.zeros((len(addresses), 3), dtype=np.uint64)
    rows[:, 0] = addresses
    rows[:, 1] = lengths
    return Descriptors.from_rows(rows)


def spans_of(views: Iterable[tuple[int, int, int, Any]]) -> Descriptors:
    """Blocks of several views on memory, each of which has a start, the distance from block to block, how
    much of that is the block's, and which blocks."""
    addresses, lengths = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for start, stride, length, which in views:
        indices = np.asarray(which, dtype=np.uint64)
        addresses.append(indices * np.uint64(stride) + np.uint64(start))
        lengths.append(np.full(len(indices), length, dtype=np.uint64))
    return ranges(np.concatenate(addresses), np.concatenate(lengths))


class GrantedEngine:
    """`mooncake.engine.TransferEngine` as far as vLLM's connector calls it, and grants.

    Registers memory without sharing it, so a peer may write what it was granted and nothing else. What comes
    under a grant is one transfer, and `engine.metrics` counts it: done when the writer has said so, failed
    where the grant is taken back before.
    """

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._regions: list[Region] = []
        self.grants = Grants()
        """What peers may write now, by what it was granted for."""
        # How many bytes are to come under each grant.
        self._expected: dict[int, int] = {}
        self._peers = Peers()
        self._looking = threading.Lock()

    def initialize(self, hostname: str, metadata_server: str, protocol: str, device_name: str) -> int:
        """Starts the engine on an address of this host. Raises where it cannot do what was asked for."""
        check_metadata_server(metadata_server)
        host = f"[{hostname}]" if ":" in hostname else hostname
        carrier = transport(protocol)
        devices = rdma_devices(carrier, device_name)
        self._engine = Engine(process_registry(), listen=f"{host}:0", transport=carrier, rdma_devices=devices)
        return 0

    @property
    def engine(self) -> Engine:
        """The engine, once it was initialised."""
        if self._engine is None:
            raise RuntimeError("the engine was not initialised, or is shut down")
        return self._engine

    def get_rpc_port(self) -> int:
        """The port by which others reach it."""
        return self.engine.port

    def batch_register_memory(self, addresses: list[int], lengths: list[int]) -> int:
        """Registers memory, shared with nobody. Peers are told where it is, to name addresses in it."""
        registry = self.engine.registry
        for address, length in zip(addresses, lengths, strict=True):
            region = registry.register_address(address, length, access="read_write")
            region.layout(length, 1).publish(f"vllm.{address:x}")
            self._regions.append(region)
        return 0

    def batch_transfer_sync_write(
        self, session: str, sources: list[int], targets: list[int], lengths: list[int]
    ) -> int:
        """Writes runs of bytes to who granted them. 0 once it has them all; -1 else."""
        try:
            to, there = Session.parse(session), ranges(targets, lengths)
            peer = self._peer(to, there)
        except (Error, SessionError) as error:
            logger.warning("writing to %s failed: %s", session, error)
            self.engine.count("sent")
            return -1
        try:
            carrier = peer.status()["transport"] or ""
            peer.write(
                ranges(sources, lengths),
                there,
                grant=RemoteGrant.named(to.owner, to.grant, "write"),
                notify=f"{to.grant:x} {carrier}".encode(),
            ).wait()
        except Error as error:
            logger.warning("writing to %s failed: %s", session, error)
            return -1
        return 0

    def _peer(self, to: Session, there: Descriptors) -> Peer:
        """Who granted. One that is known, and its memory, is not asked again: that would be a round trip more
        for each write, which waits for threads that have no hurry."""
        with self._looking:
            peer = self._peers.of(self.engine, to.address)
        if peer.incarnation != to.owner or there.first_unshared(peer) is not None:
            peer.ready()
        return peer

    def grant(self, purpose: str, what: Descriptors, peer: int, ttl: float) -> str:
        """Lets the engine with this incarnation write these ranges of addresses, for a time in seconds.
        Returns what names the grant behind this host (`Session.mark`)."""
        with self.grants.giving(purpose) as given:
            grant = self.engine.grant(what, peer, "write", ttl)
            given.append(grant)
            self._expected[grant.id] = what.total_bytes()
        return Session.mark(self.engine.incarnation, grant.id)

    def revoke(self, purpose: str) -> None:
        """Takes back what was granted for a purpose: nobody can write it any more when this returns."""
        revoked = self.grants.revoke(purpose)
        self.count_arrivals()
        for grant in revoked:
            if self._expected.pop(grant.id, None) is not None:
                self.engine.count("received")

    def count_arrivals(self) -> None:
        """Counts the transfers of which writers have said that they are done."""
        while (notification := self.engine.try_notification()) is not None:
            try:
                grant, _, carrier = notification.message.decode().partition(" ")
                if (expected := self._expected.pop(int(grant, 16), None)) is not None:
                    self.engine.count("received", carrier or None, expected)
            except ValueError:
                # Anybody may send one.
                logger.warning("a notification that names no grant is ignored: %r", notification.message[:64])

    def close(self) -> None:
        """Ends it: nothing is read or written any more when this returns. May be called again."""
        engine, self._engine = self._engine, None
        self._peers.clear()
        if engine is not None:
            engine.shutdown()
        for region in self._regions:
            region.unregister(0)
        self._regions.clear()
