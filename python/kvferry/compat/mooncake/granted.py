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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._errors import Error
from ..._native import Descriptors, Engine, Grant, Peer, Region, RemoteGrant, process_registry
from ._types import check_metadata_server, rdma_devices, transport

__all__ = ["GrantedEngine", "Session", "SessionError", "Written", "ranges"]

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


@dataclass(frozen=True)
class Written:
    """How a write ended."""

    transport: str
    bytes: int
    done: bool


def ranges(addresses: Any, lengths: Any) -> Descriptors:
    """Ranges of memory, from two sequences or arrays of the same length."""
    rows = np.zeros((len(addresses), 3), dtype=np.uint64)
    rows[:, 0] = addresses
    rows[:, 1] = lengths
    return Descriptors.from_rows(rows)


class GrantedEngine:
    """`mooncake.engine.TransferEngine` as far as vLLM's connector calls it, and grants.

    Registers memory without sharing it, so a peer may write what it was granted and nothing else.
    """

    def __init__(self) -> None:
        self.on_write: Callable[[Written], None] = lambda written: None
        """Told of the end of each write, on the thread that made it."""
        self._engine: Engine | None = None
        self._regions: list[Region] = []
        self._peers: dict[str, Peer] = {}
        self._lock = threading.Lock()

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
        carrier = ""
        try:
            to = Session.parse(session)
            peer = self.engine.connect(to.address)
            carrier = peer.status()["transport"] or ""
            with self._lock:
                # Those that ended have other ports when they come back.
                self._peers = {at: one for at, one in self._peers.items() if one.incarnation is not None}
                self._peers[peer.address] = peer
            report = peer.write(
                ranges(sources, lengths),
                ranges(targets, lengths),
                grant=RemoteGrant.named(to.owner, to.grant, "write"),
                notify=f"{to.grant:x} {carrier}".encode(),
            ).wait()
        except (Error, SessionError) as error:
            logger.warning("writing to %s failed: %s", session, error)
            self.on_write(Written(carrier, sum(lengths), done=False))
            return -1
        self.on_write(Written(report.transport, report.bytes, done=True))
        return 0

    def peers(self) -> list[Peer]:
        """Those that were written to."""
        with self._lock:
            return list(self._peers.values())

    def grant(self, what: Descriptors, peer: int, ttl: float) -> Grant:
        """Lets the engine with this incarnation write these ranges of addresses, for a time in seconds."""
        return self.engine.grant(what, peer, "write", ttl)

    def arrivals(self) -> dict[int, str]:
        """Grants under which everything has arrived since the last call, and over which transport."""
        arrived = {}
        while (notification := self.engine.try_notification()) is not None:
            try:
                grant, _, carrier = notification.message.decode().partition(" ")
                arrived[int(grant, 16)] = carrier
            except ValueError:
                # Anybody may send one.
                logger.warning("a notification that names no grant is ignored: %r", notification.message[:64])
        return arrived

    def close(self) -> None:
        """Ends it: nothing is read or written any more when this returns. May be called again."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()
        for region in self._regions:
            region.unregister(0)
        self._regions.clear()
