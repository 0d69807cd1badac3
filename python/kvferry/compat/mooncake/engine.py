"""`TransferEngine` as in `mooncake.engine`: the calls, their arguments and what they return.

Where Mooncake's engine returns a code, this one does, too, and says why in the log of this module and in
`TransferEngine.last_error`. Memory that is registered is shared with everybody, as there; peers follow what
is registered and given back without being told.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..._errors import DeadlineError, Error
from ..._native import Engine, Pairs, Peer, Post, process_registry
from .. import _letters
from .._kept import Peers
from .._memory import Shared
from ._types import (
    Read,
    TransferNotify,
    TransferOpcode,
    Write,
    advertised,
    check_metadata_server,
    deadline,
    listening,
    rdma_devices,
    transport,
)

__all__ = ["Read", "TransferEngine", "TransferNotify", "TransferOpcode", "Write"]

logger = logging.getLogger(__name__)

# How many transfers may be started whose end nobody has asked for.
_BATCHES = 65536

# What marks notifications of this interface.
_KIND = b"M"


class TransferEngine:
    """An engine of this process. Its methods can be called from any thread."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._peers = Peers()
        self._memory = Shared()
        self._batches: dict[int, Post] = {}
        self._next_batch = itertools.count(1)
        # Held around changes of the peers, never while anything waits.
        self._changing = threading.Lock()
        #: Why the last call that failed did.
        self.last_error: str = ""

    # --- start and addresses ---

    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str) -> int:
        """Starts it. 0, or -1. `local_hostname` is what peers reach this process by; `protocol` is what
        carries transfers, and nothing else does."""
        return self._start(local_hostname, metadata_server, protocol, device_name)

    def initialize_ext(
        self,
        local_hostname: str,
        metadata_server: str,
        protocol: str,
        device_name: str,
        metadata_type: str,
    ) -> int:
        """As `initialize`, with the kind of the metadata server said apart."""
        server = metadata_type if metadata_type == "P2PHANDSHAKE" else metadata_server
        return self._start(local_hostname, server, protocol, device_name)

    def _start(self, local_hostname: str, metadata_server: str, protocol: str, devices: str) -> int:
        def start() -> int:
            if self._engine is not None:
                raise ValueError("the engine is initialized already")
            check_metadata_server(metadata_server)
            carrier = transport(protocol)
            self._engine = Engine(
                listen=listening(),
                advertise=advertised(local_hostname),
                transport=carrier,
                rdma_devices=rdma_devices(carrier, devices),
            )
            return 0

        return self._code("initialize", start)

    def get_rpc_port(self) -> int:
        """The port by which peers name this engine; 0 before `initialize`."""
        return self._engine.port if self._engine is not None else 0

    def get_local_topology(self, device_name: str | None = None) -> str:
        """Which RDMA devices are used from where, as JSON: nothing, since each transfer uses all that can be
        (`kvctl topology` shows them)."""
        return json.dumps({})

    # --- memory ---

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Shares memory with every peer, for as long as it is registered. 0, or -1."""
        return self.batch_register_memory([buffer_addr], [capacity], location)

    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """Shares several ranges, all or none. 0, or -1."""

        def register() -> int:
            if len(buffer_addresses) != len(capacities):
                raise ValueError(f"{len(buffer_addresses)} addresses and {len(capacities)} capacities")
            self._memory.register(list(zip(buffer_addresses, buffer_addresses, capacities, strict=True)))
            return 0

        return self._code("batch_register_memory", register)

    def unregister_memory(self, buffer_addr: int) -> int:
        """Takes memory back: when this returns nothing touches it any more. 0, or -1."""
        return self.batch_unregister_memory([buffer_addr])

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """Takes several ranges back. 0, or -1 where one was not registered; the others are taken back
        then, too."""

        def unregister() -> int:
            if unknown := self._memory.unregister(buffer_addresses):
                raise ValueError(f"not registered: {unknown}")
            return 0

        return self._code("batch_unregister_memory", unregister)

    def allocate_managed_buffer(self, length: int) -> int:
        """Memory of the engine's, shared with every peer: its address, or 0."""

        return self._code("allocate_managed_buffer", lambda: self._memory.allocate(length), failed=0)

    def free_managed_buffer(self, address: int, length: int) -> int:
        """Gives such memory back. 0, or -1."""
        return self.unregister_memory(address)

    def write_bytes_to_buffer(self, address: int, data: bytes | str, length: int) -> int:
        """Copies into memory that is registered. 0, or -1."""

        def write() -> int:
            source = data.encode() if isinstance(data, str) else data
            if length > len(source):
                raise ValueError(f"{length} bytes of {len(source)} are asked for")
            process_registry().write_at(address, source[:length])
            return 0

        return self._code("write_bytes_to_buffer", write)

    def read_bytes_from_buffer(self, address: int, length: int) -> bytes:
        """Copies out of memory that is registered."""
        return process_registry().read_at(address, length)

    def get_first_buffer_address(self, segment: str) -> int:
        """Where the oldest memory is that a peer's process shares; 0 where it shares none."""

        def first() -> int:
            self._ready(segment)
            regions = self._peer(segment).regions()
            if not regions:
                raise ValueError(f"{segment} shares no memory")
            return min(regions, key=lambda region: region.slot).address

        return self._code("get_first_buffer_address", first, failed=0)

    # --- transfers ---

    def transfer_sync_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Writes to a peer's memory. 0 when all of it is there, or -1."""
        return self._sync(target_hostname, [buffer], [peer_buffer_address], [length], Write)

    def transfer_sync_read(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Reads a peer's memory. 0 when all of it is here, or -1."""
        return self._sync(target_hostname, [buffer], [peer_buffer_address], [length], Read)

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Reads or writes, and tells the peer when it is done."""
        buffers, peers, lengths = [buffer], [peer_buffer_address], [length]
        return self._sync(target_hostname, buffers, peers, lengths, opcode, notify)

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Writes many ranges in one transfer."""
        return self._sync(target_hostname, buffers, peer_buffer_addresses, lengths, Write)

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Reads many ranges in one transfer."""
        return self._sync(target_hostname, buffers, peer_buffer_addresses, lengths, Read)

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Reads or writes many ranges, and tells the peer when all are done."""
        return self._sync(target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify)

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        transport_hint: str = "",
    ) -> int:
        """Starts a transfer: its number, or 0."""

        def start() -> int:
            return self._start_transfer(target_hostname, buffers, peer_buffer_addresses, lengths, opcode)

        return self._code("batch_transfer_async", start, failed=0)

    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Starts a write of many ranges: its number, or 0."""
        return self.batch_transfer_async(target_hostname, buffers, peer_buffer_addresses, lengths, Write)

    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Starts a read of many ranges: its number, or 0."""
        return self.batch_transfer_async(target_hostname, buffers, peer_buffer_addresses, lengths, Read)

    def transfer_submit_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Starts a write: its number, or 0."""

        def start() -> int:
            return self._start_transfer(target_hostname, [buffer], [peer_buffer_address], [length], Write)

        return self._code("transfer_submit_write", start, failed=0)

    def transfer_check_status(self, batch: int) -> int:
        """0 while it is under way, then once: 1 done, -1 failed, -2 its deadline passed. -1 for a number
        that is not, or no longer, known."""

        def check() -> int:
            try:
                report = self._batches[batch].poll()
            except Error as error:
                self._batches.pop(batch, None)
                self._fail("transfer_check_status", error)
                return -2 if isinstance(error, DeadlineError) else -1
            if report is None:
                return 0
            self._batches.pop(batch, None)
            return 1

        return self._code("transfer_check_status", check)

    def get_batch_transfer_status(self, batches: Sequence[int]) -> int:
        """Waits for all of them. 0 when each is done, or -1."""

        def wait() -> int:
            failed: Exception | None = None
            for batch in batches:
                try:
                    self._batches[batch].wait()
                except (Error, KeyError) as error:
                    failed = error
                self._batches.pop(batch, None)
            if failed is not None:
                raise failed
            return 0

        return self._code("get_batch_transfer_status", wait)

    # --- peers ---

    def get_notifies(self) -> list[TransferNotify]:
        """What peers have said since the last call."""
        notifies = []
        while self._engine is not None and (came := self._engine.try_notification()) is not None:
            letter = _letters.opened(_KIND, came.message)
            if letter is None:
                logger.warning("a notification of another interface than Mooncake's was dropped")
                continue
            name, message = letter
            notifies.append(TransferNotify(name, message.decode(errors="replace")))
        return notifies

    def send_probe(self, peer_server_name: str) -> int:
        """0 where the peer answers, or -1."""

        def probe() -> int:
            self._ready(peer_server_name)
            return 0

        return self._code("send_probe", probe)

    # --- what exists there only ---

    def warmup_efa_segment(self, segment_name: str) -> int:
        """-1: there is no EFA transport."""
        self._fail("warmup_efa_segment", ValueError("kvferry has no EFA transport"))
        return -1

    def get_engine(self) -> Any:
        """There is no C++ engine behind this one."""
        raise NotImplementedError("there is no C++ engine of Mooncake's behind kvferry's")

    def get_engine_ptr(self) -> int:
        """There is no C++ engine behind this one."""
        raise NotImplementedError("there is no C++ engine of Mooncake's behind kvferry's")

    # --- within ---

    def _running(self) -> Engine:
        if self._engine is None:
            raise ValueError("the engine is not initialized: call initialize first")
        return self._engine

    def _peer(self, name: str) -> Peer:
        with self._changing:
            return self._peers.of(self._running(), name)

    def _ready(self, name: str) -> None:
        self._peer(name).ready()

    def _post(
        self,
        target: str,
        buffers: Sequence[int],
        peer_buffers: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        notify: TransferNotify | None,
    ) -> Post:
        engine = self._running()
        pairs = Pairs.of_addresses(buffers, peer_buffers, lengths)
        letter = None if notify is None else _letters.closed(_KIND, notify.name, notify.msg.encode())
        way = "write" if opcode == Write else "read"
        return pairs.post(engine, self._peer(target), way, notify=letter, deadline=deadline())

    def _sync(
        self,
        target: str,
        buffers: Sequence[int],
        peer_buffers: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
    ) -> int:
        def transfer() -> int:
            post = self._post(target, buffers, peer_buffers, lengths, opcode, notify)
            try:
                post.wait()
            except BaseException:
                # Interrupted, too, by whatever a signal's handler raises.
                post.cancel()
                raise
            return 0

        return self._code("transfer", transfer)

    def _start_transfer(
        self,
        target: str,
        buffers: Sequence[int],
        peer_buffers: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
    ) -> int:
        """Starts a transfer, or raises why it cannot be: whoever has its number knows that it was."""
        if len(self._batches) >= _BATCHES:
            raise ValueError(f"the ends of {_BATCHES} transfers were not asked for: ask first")
        peer = self._peer(target)
        if peer.incarnation is None:
            peer.ready()
        post = self._post(target, buffers, peer_buffers, lengths, opcode, None)
        post.poll()
        batch = next(self._next_batch)
        self._batches[batch] = post
        return batch

    def _code(self, what: str, call: Callable[[], int], failed: int = -1) -> int:
        try:
            return call()
        except (Error, ValueError, KeyError) as error:
            self._fail(what, error)
            return failed

    def _fail(self, what: str, error: Exception) -> None:
        self.last_error = f"{what}: {error}"
        logger.error("%s", self.last_error)
