"""What programs do with Mooncake's transfer engine."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import numpy as np
from cases import OURS, Cases

engine: Any = import_module("kvferry.compat.mooncake.engine" if OURS else "mooncake.engine")
TransferEngine, TransferNotify, TransferOpcode = (
    engine.TransferEngine,
    engine.TransferNotify,
    engine.TransferOpcode,
)

cases = Cases()
case = cases.case
BYTES = 1 << 20


class Pair:
    """Two engines in this process, each with memory."""

    def __init__(self) -> None:
        self.here, self.there = (self.engine() for _ in range(2))
        self.ours, self.theirs = np.zeros(BYTES, np.uint8), np.zeros(BYTES, np.uint8)
        self.ours[:] = 7
        assert self.here.register_memory(self.ours.ctypes.data, BYTES) == 0
        assert self.there.batch_register_memory([self.theirs.ctypes.data], [BYTES]) == 0
        self.source, self.target = self.ours.ctypes.data, self.theirs.ctypes.data
        self.name = f"127.0.0.1:{self.there.get_rpc_port()}"

    @staticmethod
    def engine() -> Any:
        engine = TransferEngine()
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        return engine

    def ended(self, batch: int) -> int:
        while (status := self.here.transfer_check_status(batch)) == 0:
            time.sleep(0.001)
        return int(status)


@case("initialize, tcp")
def _() -> object:
    return TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")


@case("initialize, rdma where there is no device", "what was asked for is had, or is an error")
def _() -> object:
    return TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "")


@case("initialize, a protocol that does not exist", "what was asked for is had, or is an error")
def _() -> object:
    return TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "pigeon", "")


@case("initialize, HOST:PORT: get_rpc_port says PORT")
def _() -> object:
    engine = TransferEngine()
    return engine.initialize("127.0.0.1:17999", "P2PHANDSHAKE", "tcp", ""), engine.get_rpc_port() == 17999


@case("initialize twice", "the first stays as it is")
def _() -> object:
    engine = Pair.engine()
    return engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")


@case("initialize_ext, tcp")
def _() -> object:
    return TransferEngine().initialize_ext("127.0.0.1", "P2PHANDSHAKE", "tcp", "", "P2PHANDSHAKE")


@case("get_rpc_port before initialize", "0 says that there is none")
def _() -> object:
    return TransferEngine().get_rpc_port()


@case("get_local_topology is JSON of a dictionary")
def _() -> object:
    import json

    return isinstance(json.loads(Pair.engine().get_local_topology()), dict)


@case("register the same range again", "it is counted: each has to be unregistered")
def _() -> object:
    pair = Pair()
    return pair.here.register_memory(pair.source, BYTES)


@case("register a part of what is registered", "it is counted, as the whole is")
def _() -> object:
    pair = Pair()
    return pair.here.register_memory(pair.source + 4096, 4096)


@case("register what overlaps in part", "refused by both: the code says as little there")
def _() -> object:
    pair = Pair()
    return pair.here.register_memory(pair.source + BYTES - 16, 32)


@case("register nothing", "a range of no bytes names nothing")
def _() -> object:
    pair = Pair()
    return pair.here.register_memory(pair.source + 8 * BYTES, 0)


@case("batch_register_memory with a capacity missing", "no program means that")
def _() -> object:
    return Pair.engine().batch_register_memory([4096], [])


@case("unregister_memory")
def _() -> object:
    pair = Pair()
    return pair.here.unregister_memory(pair.source)


@case("unregister_memory twice")
def _() -> object:
    pair = Pair()
    return [pair.here.unregister_memory(pair.source) == 0 for _ in range(2)]


@case("batch_unregister_memory")
def _() -> object:
    pair = Pair()
    return pair.here.batch_unregister_memory([pair.source])


@case("transfer_sync_write moves the bytes")
def _() -> object:
    pair = Pair()
    code = pair.here.transfer_sync_write(pair.name, pair.source, pair.target, 4096)
    return code, bool((pair.theirs[:4096] == 7).all())


@case("transfer_sync_read moves the bytes")
def _() -> object:
    pair = Pair()
    pair.theirs[:4096] = 9
    code = pair.here.transfer_sync_read(pair.name, pair.source, pair.target, 4096)
    return code, bool((pair.ours[:4096] == 9).all())


@case("batch_transfer_sync_write of many ranges")
def _() -> object:
    pair = Pair()
    sources = [pair.source + 8192 * block for block in range(64)]
    targets = [pair.target + 8192 * block for block in range(64)]
    code = pair.here.batch_transfer_sync_write(pair.name, sources, targets, [4096] * 64)
    return code, int((pair.theirs == 7).sum())


@case("batch_transfer_sync_read of many ranges")
def _() -> object:
    pair = Pair()
    sources = [pair.source + 8192 * block for block in range(64)]
    targets = [pair.target + 8192 * block for block in range(64)]
    code = pair.here.batch_transfer_sync_read(pair.name, sources, targets, [4096] * 64)
    return code, int((pair.ours == 0).sum())


@case("a batch of nothing")
def _() -> object:
    pair = Pair()
    return pair.here.batch_transfer_sync_write(pair.name, [], [], [])


@case("a batch with a length missing")
def _() -> object:
    pair = Pair()
    return pair.here.batch_transfer_sync_write(pair.name, [pair.source], [pair.target], [])


@case("transfer_sync with a notification: get_notifies at the target")
def _() -> object:
    pair = Pair()
    notify = TransferNotify("sender", "message")
    code = pair.here.transfer_sync(pair.name, pair.source, pair.target, 64, TransferOpcode.Write, notify)
    return code, [(one.name, one.msg) for one in pair.there.get_notifies()]


@case("batch_transfer_sync with a notification")
def _() -> object:
    pair = Pair()
    notify = TransferNotify("sender", "message")
    call = pair.here.batch_transfer_sync
    code = call(pair.name, [pair.source], [pair.target], [64], TransferOpcode.Read, notify)
    return code, [(one.name, one.msg) for one in pair.there.get_notifies()]


@case("get_notifies where there are none")
def _() -> object:
    return Pair.engine().get_notifies()


@case("write from memory that is not registered", "only what is registered is touched")
def _() -> object:
    pair = Pair()
    stray = np.zeros(4096, np.uint8)
    return pair.here.transfer_sync_write(pair.name, stray.ctypes.data, pair.target, 64)


@case("write to memory that is not registered")
def _() -> object:
    pair = Pair()
    stray = np.zeros(4096, np.uint8)
    return pair.here.transfer_sync_write(pair.name, pair.source, stray.ctypes.data, 64)


@case("write past the end of registered memory")
def _() -> object:
    pair = Pair()
    return pair.here.transfer_sync_write(pair.name, pair.source, pair.target + BYTES - 8, 64)


@case("write to memory that was unregistered")
def _() -> object:
    pair = Pair()
    first = pair.here.transfer_sync_write(pair.name, pair.source, pair.target, 64)
    pair.there.unregister_memory(pair.target)
    return first, pair.here.transfer_sync_write(pair.name, pair.source, pair.target, 64)


@case("write to memory that was registered after the first transfer", "peers are told at once")
def _() -> object:
    pair = Pair()
    pair.here.transfer_sync_write(pair.name, pair.source, pair.target, 64)
    later = np.zeros(BYTES, np.uint8)
    pair.there.register_memory(later.ctypes.data, BYTES)
    return pair.here.transfer_sync_write(pair.name, pair.source, later.ctypes.data, 64)


@case("write to nobody")
def _() -> object:
    pair = Pair()
    return pair.here.transfer_sync_write("127.0.0.1:1", pair.source, pair.target, 64)


@case("write before initialize", "it says that it is not initialized")
def _() -> object:
    pair = Pair()
    return TransferEngine().transfer_sync_write(pair.name, pair.source, pair.target, 64)


@case("an engine writes to itself")
def _() -> object:
    pair = Pair()
    name = f"127.0.0.1:{pair.here.get_rpc_port()}"
    return pair.here.transfer_sync_write(name, pair.source, pair.source + 4096, 64)


@case("transfer_submit_write, transfer_check_status")
def _() -> object:
    pair = Pair()
    return pair.ended(pair.here.transfer_submit_write(pair.name, pair.source, pair.target, 64))


@case("transfer_submit_write to nobody")
def _() -> object:
    pair = Pair()
    return pair.here.transfer_submit_write("127.0.0.1:1", pair.source, pair.target, 64)


@case("batch_transfer_async_write, get_batch_transfer_status")
def _() -> object:
    pair = Pair()
    batch = pair.here.batch_transfer_async_write(pair.name, [pair.source], [pair.target], [64])
    return batch > 0, pair.here.get_batch_transfer_status([batch]), bool((pair.theirs[:64] == 7).all())


@case("batch_transfer_async_read, get_batch_transfer_status")
def _() -> object:
    pair = Pair()
    batch = pair.here.batch_transfer_async_read(pair.name, [pair.source], [pair.target], [64])
    return batch > 0, pair.here.get_batch_transfer_status([batch]), bool((pair.ours[:64] == 0).all())


@case("batch_transfer_async with an opcode")
def _() -> object:
    pair = Pair()
    arguments = (pair.name, [pair.source], [pair.target], [64], TransferOpcode.Write)
    return pair.here.get_batch_transfer_status([pair.here.batch_transfer_async(*arguments)])


@case("batch_transfer_async_write to nobody")
def _() -> object:
    pair = Pair()
    return pair.here.batch_transfer_async_write("127.0.0.1:1", [pair.source], [pair.target], [64])


@case("get_batch_transfer_status of nothing")
def _() -> object:
    return Pair.engine().get_batch_transfer_status([])


@case("allocate_managed_buffer, free_managed_buffer")
def _() -> object:
    engine = Pair.engine()
    address = engine.allocate_managed_buffer(8192)
    return address != 0, engine.free_managed_buffer(address, 8192)


@case("write_bytes_to_buffer, read_bytes_from_buffer")
def _() -> object:
    engine = Pair.engine()
    address = engine.allocate_managed_buffer(8192)
    return engine.write_bytes_to_buffer(address, b"kv", 2), engine.read_bytes_from_buffer(address, 2)


@case(
    "get_first_buffer_address", "engines of one process share its registry: the first of the process's memory"
)
def _() -> object:
    pair = Pair()
    return pair.here.get_first_buffer_address(pair.name) == pair.target


@case("get_first_buffer_address of nobody")
def _() -> object:
    return Pair.engine().get_first_buffer_address("127.0.0.1:1")


@case("send_probe")
def _() -> object:
    pair = Pair()
    return pair.here.send_probe(pair.name)


@case("send_probe of nobody is not 0")
def _() -> object:
    return Pair.engine().send_probe("127.0.0.1:1") != 0


@case("warmup_efa_segment", "there is no EFA transport, and 0 would say that it is warm")
def _() -> object:
    pair = Pair()
    return pair.here.warmup_efa_segment(pair.name)


@case("get_engine_ptr", "there is no C++ engine behind it")
def _() -> object:
    return isinstance(Pair.engine().get_engine_ptr(), int)


@case("TransferOpcode and TransferNotify")
def _() -> object:
    notify = TransferNotify("name", "msg")
    return int(TransferOpcode.Read), int(TransferOpcode.Write), notify.name, notify.msg, TransferNotify().msg
