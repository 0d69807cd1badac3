"""Mooncake's interface, between two processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from kvferry.compat.mooncake import TransferEngine, TransferNotify, TransferOpcode
from other import Other, Pipe

BYTES = 1 << 20


def initialized(protocol: str = "tcp") -> TransferEngine:
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", protocol, "") == 0, engine.last_error
    return engine


def target(pipe: Pipe, protocol: str = "tcp") -> None:
    """Registers memory; then does what it is told, and says what came of it."""
    engine = initialized(protocol)
    memory = np.zeros(BYTES, np.uint8)
    assert engine.batch_register_memory([memory.ctypes.data], [BYTES]) == 0
    pipe.tell((f"127.0.0.1:{engine.get_rpc_port()}", memory.ctypes.data))
    others = []
    while (asked := pipe.hear()) is not None:
        if asked == "memory":
            pipe.tell(memory.tobytes())
        elif asked == "notifies":
            pipe.tell([(notify.name, notify.msg) for notify in engine.get_notifies()])
        elif asked == "unregister":
            pipe.tell(engine.unregister_memory(memory.ctypes.data))
        elif asked == "register":
            pipe.tell(engine.register_memory(memory.ctypes.data, BYTES))
        elif asked == "more":
            others.append(np.full(BYTES, 3, np.uint8))
            assert engine.register_memory(others[-1].ctypes.data, BYTES) == 0
            pipe.tell(others[-1].ctypes.data)


@pytest.fixture
def memory() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.arange(BYTES, dtype=np.uint32).astype(np.uint8)


@pytest.fixture
def engine(memory: np.ndarray[Any, np.dtype[np.uint8]]) -> Iterator[TransferEngine]:
    engine = initialized()
    assert engine.register_memory(memory.ctypes.data, BYTES) == 0
    yield engine
    assert engine.unregister_memory(memory.ctypes.data) == 0


def test_the_calls_of_vllm_work_from_ten_threads(
    another: Callable[..., Other], engine: TransferEngine, memory: np.ndarray[Any, np.dtype[np.uint8]]
) -> None:
    other = another(target)
    address, base = other.hear()
    codes: list[int] = []
    share = BYTES // 10

    def write(thread: int) -> None:
        starts = [thread * share + block * 1024 for block in range(share // 1024)]
        sources = [memory.ctypes.data + start for start in starts]
        targets = [base + start for start in starts]
        codes.append(engine.batch_transfer_sync_write(address, sources, targets, [1024] * len(starts)))

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(10)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert codes == [0] * 10
    other.tell("memory")
    seen = np.frombuffer(other.hear(), np.uint8)
    whole = share // 1024 * 1024
    for thread in range(10):
        assert np.array_equal(seen[thread * share :][:whole], memory[thread * share :][:whole])
    other.tell(None)
    assert other.end() == 0


def test_transfers_go_both_ways_and_may_be_asked_for_later(
    another: Callable[..., Other], engine: TransferEngine, memory: np.ndarray[Any, np.dtype[np.uint8]]
) -> None:
    other = another(target)
    address, base = other.hear()
    here = memory.ctypes.data
    assert engine.transfer_sync_write(address, here, base, 4096) == 0
    assert engine.transfer_sync_read(address, here + 8192, base, 4096) == 0
    assert np.array_equal(memory[8192:12288], memory[:4096])
    write = engine.batch_transfer_async_write(address, [here], [base + 4096], [4096])
    read = engine.batch_transfer_async_read(address, [here + 16384], [base], [4096])
    assert write > 0 and read > 0
    assert engine.get_batch_transfer_status([write, read]) == 0
    assert engine.get_batch_transfer_status([write]) == -1, "its end is told once"
    submitted = engine.transfer_submit_write(address, here, base, 16)
    while (status := engine.transfer_check_status(submitted)) == 0:
        pass
    assert status == 1 and engine.transfer_check_status(submitted) == -1
    notify = TransferNotify("prefill", "request 7")
    assert engine.transfer_sync(address, here, base, 16, TransferOpcode.Read, notify) == 0
    assert engine.batch_transfer_sync(address, [here], [base], [16], TransferOpcode.Write, notify) == 0
    other.tell("notifies")
    assert other.hear() == [("prefill", "request 7")] * 2
    assert engine.get_first_buffer_address(address) == base
    assert engine.send_probe(address) == 0


def test_failures_are_codes_and_say_why(
    another: Callable[..., Other], engine: TransferEngine, memory: np.ndarray[Any, np.dtype[np.uint8]]
) -> None:
    other = another(target)
    address, base = other.hear()
    here = memory.ctypes.data
    assert engine.transfer_sync_write("127.0.0.1:1", here, base, 16) == -1
    assert "cannot be reached" in engine.last_error
    assert engine.transfer_sync_write(address, here, base + BYTES, 16) == -1
    assert "shares no region" in engine.last_error
    assert engine.transfer_sync_write(address, 4096, base, 16) == -1
    assert "register it first" in engine.last_error
    assert engine.batch_transfer_sync_write(address, [here, here], [base], [16]) == -1
    assert engine.batch_transfer_async_write("no port", [here], [base], [16]) == 0
    assert engine.batch_transfer_async_write("127.0.0.1:1", [here], [base], [16]) == 0
    assert engine.transfer_submit_write("127.0.0.1:1", here, base, 16) == 0
    assert engine.batch_transfer_async_write(address, [4096], [base], [16]) == 0
    assert engine.send_probe("127.0.0.1:1") == -1
    assert engine.register_memory(0, 16) == -1
    assert engine.unregister_memory(4096) == -1
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
    assert TransferEngine().transfer_sync_write(address, here, base, 16) == -1


@pytest.mark.parametrize(
    ("server", "protocol", "says"),
    [
        ("P2PHANDSHAKE", "rdma", "no RDMA, and it was demanded"),
        ("P2PHANDSHAKE", "nvlink", "no protocol"),
        ("etcd://127.0.0.1:2379", "tcp", "P2PHANDSHAKE"),
    ],
)
def test_what_was_asked_for_is_had_or_is_an_error(server: str, protocol: str, says: str) -> None:
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", server, protocol, "") == -1
    assert says in engine.last_error and engine.get_rpc_port() == 0


@pytest.mark.parametrize("protocol", ["rdma", "auto"])
def test_a_device_that_was_named_and_is_not_there_is_an_error(protocol: str) -> None:
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", protocol, "mlx5_99") == -1
    # Where there is no libibverbs, that is what is missing first.
    assert "mlx5_99" in engine.last_error or "libibverbs" in engine.last_error
    assert engine.get_rpc_port() == 0
    # Of no use, and in nobody's way.
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "mlx5_99") == 0


def test_tcp_is_tcp_and_auto_takes_the_short_cut(another: Callable[..., Other]) -> None:
    for protocol, transport in (("tcp", "tcp"), ("auto", "local"), ("local", "local")):
        other = another(target, protocol)
        address, _ = other.hear()
        engine = initialized(protocol)
        assert engine.send_probe(address) == 0
        assert engine._peer(address).status()["transport"] == transport


def test_peers_follow_memory_that_is_given_back_and_registered_again(
    another: Callable[..., Other], engine: TransferEngine, memory: np.ndarray[Any, np.dtype[np.uint8]]
) -> None:
    other = another(target)
    address, base = other.hear()
    here = memory.ctypes.data
    assert engine.transfer_sync_write(address, here, base, 4096) == 0
    for _ in range(20):
        other.tell("unregister")
        assert other.hear() == 0
        assert engine.transfer_sync_write(address, here, base, 4096) == -1
        other.tell("register")
        assert other.hear() == 0
        assert engine.transfer_sync_write(address, here, base, 4096) == 0, engine.last_error
    for _ in range(20):
        other.tell("more")
        assert engine.transfer_sync_read(address, here, other.hear(), BYTES) == 0, engine.last_error
        assert (memory == 3).all()


def test_managed_memory_is_shared_and_given_back(
    another: Callable[..., Other], engine: TransferEngine
) -> None:
    other = another(target)
    address, base = other.hear()
    managed = engine.allocate_managed_buffer(8192)
    assert managed != 0
    assert engine.write_bytes_to_buffer(managed, b"kv cache", 8) == 0
    assert engine.transfer_sync_write(address, managed, base, 8) == 0
    assert engine.transfer_sync_read(address, managed + 4096, base, 8) == 0
    assert engine.read_bytes_from_buffer(managed + 4096, 8) == b"kv cache"
    assert engine.free_managed_buffer(managed, 8192) == 0
    assert engine.free_managed_buffer(managed, 8192) == -1
    assert engine.write_bytes_to_buffer(managed, b"gone", 4) == -1


def test_a_range_may_be_registered_twice_and_a_part_of_it(
    another: Callable[..., Other], engine: TransferEngine, memory: np.ndarray[Any, np.dtype[np.uint8]]
) -> None:
    here = memory.ctypes.data
    assert engine.register_memory(here, BYTES) == 0
    assert engine.register_memory(here + 4096, 4096) == 0
    assert engine.register_memory(here + BYTES - 8, 16) == -1
    assert "overlaps" in engine.last_error
    assert engine.batch_unregister_memory([here, here + 4096]) == 0
    back = f"127.0.0.1:{engine.get_rpc_port()}"
    assert engine.transfer_sync_write(back, here, here + 8192, 4096) == 0, engine.last_error
    assert np.array_equal(memory[8192:12288], memory[:4096])
