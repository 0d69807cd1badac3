"""What vLLM's Mooncake worker takes for a transfer engine and for a bootstrap server.

Blocks are written under grants: a decode worker grants the blocks of one request to one prefill worker for
the time of its pull, and names the grant behind its host, ``HOST#INCARNATION.GRANT``, in the field from which
vLLM makes the address of a write. So a decode worker that gives a pull up can take the blocks back for
certain, and nobody writes without being asked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import kvferry
from kvferry import _native, bootstrap

logger = logging.getLogger("vllm.kvferry")

PROTOCOLS = {"tcp": "tcp", "local": "local", "auto": "auto"}
"""What ``mooncake_protocol`` may be, and the transports that the engine is allowed then."""


DEVICES = ("device_name", "device_names_by_gpu", "device_name_per_gpu")
"""Settings that name RDMA devices."""


def check_devices(settings: Mapping[str, Any]) -> None:
    """Raises where a device is asked for: none of the protocols uses one."""
    for name in DEVICES:
        if named := settings.get(name):
            raise ValueError(f"{name} is {named!r}, and {', '.join(PROTOCOLS)} use no device: leave it out")


class SessionError(ValueError):
    """The address of a write names no grant: the decode worker is none of kvferry's."""


@dataclass(frozen=True)
class Session:
    """Where a write goes, and by whose leave."""

    address: str
    owner: int
    grant: int

    @staticmethod
    def mark(owner: int, grant: int) -> str:
        """What a decode worker appends to its host."""
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


def runs(addresses: Any, lengths: Any) -> _native.Descriptors:
    """Ranges of memory, from two sequences or arrays of the same length."""
    rows = np.zeros((len(addresses), 3), dtype=np.uint64)
    rows[:, 0] = addresses
    rows[:, 1] = lengths
    return _native.Descriptors.from_rows(rows)


class PushEngine:
    """Stands in for `mooncake.engine.TransferEngine`: the five methods that vLLM calls, and what ours need.

    Registers memory without sharing it, so a peer may write what it was granted and nothing else.
    """

    def __init__(self) -> None:
        self.on_write: Callable[[Written], None] = lambda written: None
        """Told of the end of each write, on the thread that made it."""
        self._engine: kvferry.Engine | None = None
        self._regions: list[kvferry.Region] = []
        self._peers: dict[str, kvferry.Peer] = {}
        self._lock = threading.Lock()

    def initialize(self, hostname: str, metadata_server: str, protocol: str, device_name: str) -> int:
        """Starts the engine on an address of this host. Raises where it cannot do what was asked for."""
        if metadata_server != "P2PHANDSHAKE":
            raise ValueError(f"metadata server {metadata_server!r}: kvferry's engines need none")
        if protocol not in PROTOCOLS:
            raise ValueError(
                f"mooncake_protocol is {protocol!r}, and kvferry has {', '.join(PROTOCOLS)}: "
                'set "mooncake_protocol" in kv_connector_extra_config to one of them'
            )
        if hostname in ("0.0.0.0", "::", ""):
            raise ValueError("vLLM found no address of this host: set VLLM_HOST_IP to one that others reach")
        host = f"[{hostname}]" if ":" in hostname else hostname
        registry, transport = kvferry.process_registry(), PROTOCOLS[protocol]
        self._engine = kvferry.Engine(registry, listen=f"{host}:0", transport=transport)
        return 0

    @property
    def engine(self) -> kvferry.Engine:
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
        """Writes runs of bytes to a session's decode worker. 0 once it has them all; -1 else."""
        transport = ""
        try:
            to = Session.parse(session)
            peer = self.engine.connect(to.address)
            transport = peer.status()["transport"] or ""
            with self._lock:
                # Those that ended have other ports when they come back.
                self._peers = {at: one for at, one in self._peers.items() if one.incarnation is not None}
                self._peers[peer.address] = peer
            report = peer.write(
                runs(sources, lengths),
                runs(targets, lengths),
                grant=kvferry.RemoteGrant.named(to.owner, to.grant, "write"),
                notify=f"{to.grant:x} {transport}".encode(),
            ).wait()
        except (kvferry.Error, SessionError) as error:
            logger.warning("writing to %s failed: %s", session, error)
            self.on_write(Written(transport, sum(lengths), done=False))
            return -1
        self.on_write(Written(report.transport, report.bytes, done=True))
        return 0

    def peers(self) -> list[kvferry.Peer]:
        """Those that were written to."""
        with self._lock:
            return list(self._peers.values())

    def grant(self, ranges: _native.Descriptors, peer: int, ttl: float) -> kvferry.Grant:
        """Lets the engine with this incarnation write these ranges of addresses, for a time in seconds."""
        return self.engine.grant(ranges, peer, "write", ttl)

    def arrivals(self) -> dict[int, str]:
        """Grants under which everything has arrived since the last call, and over which transport."""
        arrived = {}
        while (notification := self.engine.try_notification()) is not None:
            try:
                grant, _, transport = notification.message.decode().partition(" ")
                arrived[int(grant, 16)] = transport
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


class BootstrapServer:
    """Stands in for vLLM's `MooncakeBootstrapServer`: gives a worker that starts again its rank back, answers
    once all ranks are there, and forgets the dead."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._server: bootstrap.Server | None = None

    def start(self) -> None:
        """Serves, from when this returns on. Raises where the port is taken."""
        if self._server is None:
            self._server = bootstrap.Server(f"{self.host}:{self.port}")
            self.port = self._server.port

    def shutdown(self) -> None:
        """Ends it. May be called again, and before it was started."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
