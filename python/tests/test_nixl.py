"""NIXL's interface, between two processes."""

from __future__ import annotations

import errno
import gc
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvferry import process_registry
from kvferry.compat import nixl
from kvferry.compat.nixl import nixl_agent, nixl_agent_config
from other import Other, Pipe
from patience import DEADLINE_S, until

BLOCK = 4096
BLOCKS = 256
BYTES = BLOCK * BLOCKS
ADAPTERS = Path("/sys/class/infiniband")
WITHOUT_ADAPTERS = pytest.mark.skipif(
    ADAPTERS.is_dir() and any(ADAPTERS.iterdir()), reason="there are adapters"
)
Memory = np.ndarray[Any, np.dtype[np.uint8]]


def agent_named(name: str, **config: Any) -> nixl_agent:
    return nixl_agent(name, nixl_agent_config(backends=["UCX"], capture_telemetry=True, **config))


def rows(base: int, blocks: int = BLOCKS, length: int = BLOCK) -> np.ndarray[Any, np.dtype[np.uint64]]:
    listed = np.zeros((blocks, 3), np.uint64)
    listed[:, 0] = np.uint64(base) + np.arange(blocks, dtype=np.uint64) * np.uint64(BLOCK)
    listed[:, 1] = length
    return listed


def pattern() -> Memory:
    return np.repeat(np.arange(BLOCKS, dtype=np.uint32), BLOCK // 4).view(np.uint8).copy()


def prefill(pipe: Pipe, name: str = "prefill", listen: int | None = None) -> None:
    """Registers memory; then does what it is told, and says what came of it."""
    agent = agent_named(name, enable_listen_thread=listen is not None, listen_port=listen or 0)
    memory = pattern()
    descs = agent.register_memory([(memory.ctypes.data, BYTES, 0, "")], "DRAM")
    pipe.tell((agent.get_agent_metadata(), memory.ctypes.data, agent.listen_port))
    more: list[Memory] = []
    while (asked := pipe.hear()) is not None:
        if asked == "memory":
            pipe.tell(memory.tobytes())
        elif asked == "notifs":
            pipe.tell(agent.get_new_notifs())
        elif asked == "deregister":
            agent.deregister_memory(descs)
            pipe.tell()
        elif asked == "register":
            agent.register_memory(descs)
            pipe.tell()
        elif asked == "more":
            more.append(np.full(BYTES, 7, np.uint8))
            agent.register_memory([(more[-1].ctypes.data, BYTES, 0, "")], "DRAM")
            pipe.tell(more[-1].ctypes.data)
        elif asked == "partial":
            part = agent.get_reg_descs([(memory.ctypes.data, BLOCK, 0, "")], "DRAM")
            pipe.tell((agent.get_partial_agent_metadata(part), agent.get_partial_agent_metadata(part, True)))
        elif isinstance(asked, bytes):
            pipe.tell(agent.add_remote_agent(asked))


def finish(agent: nixl_agent, handle: Any) -> str:
    return ended(agent, handle, agent.transfer(handle))


def ended(agent: nixl_agent, handle: Any, state: str = "PROC") -> str:
    deadline = time.monotonic() + DEADLINE_S
    while state == "PROC":
        assert time.monotonic() < deadline
        state = agent.check_xfer_state(handle)
    return state


KEPT: list[Memory] = []
"""An agent that a thread of a test had may be collected long after the test, and its memory is registered
until then: it must be nobody else's."""


@pytest.fixture
def memory() -> Memory:
    KEPT.append(np.zeros(BYTES, np.uint8))
    return KEPT[-1]


@pytest.fixture
def decode(memory: Memory) -> nixl_agent:
    agent = agent_named("decode")
    agent.register_memory(agent.get_reg_descs([(memory.ctypes.data, BYTES, 0, "")], "DRAM"), backends=["UCX"])
    return agent


def test_the_calls_of_vllm_pull_scattered_blocks(
    another: Callable[..., Other], decode: nixl_agent, memory: Memory
) -> None:
    other = another(prefill)
    blob, base, _ = other.hear()
    name = decode.add_remote_agent(blob)
    assert name == "prefill" and decode.check_remote_metadata(name)
    ours = decode.prep_xfer_dlist("NIXL_INIT_AGENT", decode.get_xfer_descs(rows(memory.ctypes.data), "DRAM"))
    theirs = decode.prep_xfer_dlist(name, decode.get_xfer_descs(rows(base), "DRAM"))
    order = np.random.default_rng(1).permutation(BLOCKS)
    handle = decode.make_prepped_xfer("READ", ours, np.arange(BLOCKS), theirs, order, notif_msg=b"request:1")
    assert finish(decode, handle) == "DONE"
    assert np.array_equal(memory.view(np.uint32)[:: BLOCK // 4], order)
    telemetry = decode.get_xfer_telemetry(handle)
    assert telemetry.totalBytes == BYTES and 0 < telemetry.descCount <= BLOCKS
    assert telemetry.xferDuration > 0 and telemetry.postDuration > 0 and telemetry.startTime > 0
    decode.release_xfer_handle(handle)
    decode.send_notif(name, notif_msg=b"and this")
    said: list[bytes] = []

    def both() -> bool:
        other.tell("notifs")
        said.extend(other.hear().get("decode", []))
        return len(said) == 2

    until(both)
    assert said == [b"request:1", b"and this"]
    decode.release_dlist_handle(ours)
    with pytest.raises(nixl.nixlNotFoundError):
        decode.make_prepped_xfer("READ", ours, [0], theirs, [0])
    other.tell(None)
    assert other.end() == 0


def test_a_notification_follows_its_data_though_nobody_polls(
    another: Callable[..., Other], decode: nixl_agent, memory: Memory
) -> None:
    other = another(prefill)
    blob, base, _ = other.hear()
    name = decode.add_remote_agent(blob)
    memory[:] = 9
    local = decode.get_xfer_descs([(memory.ctypes.data, BYTES, 0)], "DRAM")
    remote = decode.get_xfer_descs([(base, BYTES, 0)], "DRAM")
    handle = decode.initialize_xfer("WRITE", local, remote, name, b"pushed")
    decode.transfer(handle)

    def arrived() -> bool:
        other.tell("notifs")
        return bool(other.hear() == {"decode": [b"pushed"]})

    until(arrived)
    other.tell("memory")
    assert other.hear() == memory.tobytes()
    assert decode.check_xfer_state(handle) == "DONE"
    handle.release()


def test_a_transfer_is_posted_again_with_another_message(decode: nixl_agent, memory: Memory) -> None:
    ours = decode.prep_xfer_dlist("", rows(memory.ctypes.data), "DRAM")
    back = decode.prep_xfer_dlist("decode", rows(memory.ctypes.data), "DRAM")
    handle = decode.make_prepped_xfer("WRITE", ours, [0], back, [1])
    for message in (b"", b"second", b""):
        decode.transfer(handle, message)
        assert ended(decode, handle) == "DONE"
    # It keeps what it was told last.
    assert decode.get_new_notifs() == {"decode": [b"second", b"second"]}


def test_agents_are_any_thread_s(another: Callable[..., Other], decode: nixl_agent, memory: Memory) -> None:
    other = another(prefill)
    blob, base, _ = other.hear()
    name = decode.add_remote_agent(blob)
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for _ in range(20):
                decode.add_remote_agent(blob)
                ours = decode.prep_xfer_dlist("", rows(memory.ctypes.data + thread * BLOCK, 1), "DRAM")
                theirs = decode.prep_xfer_dlist(name, rows(base + thread * BLOCK, 1), "DRAM")
                handle = decode.make_prepped_xfer("READ", ours, [0], theirs, [0], b"n")
                assert finish(decode, handle) == "DONE"
                decode.release_xfer_handle(handle)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert np.array_equal(memory[: 8 * BLOCK], pattern()[: 8 * BLOCK])


def test_agents_follow_memory_that_is_taken_back_and_registered_again(
    another: Callable[..., Other], decode: nixl_agent, memory: Memory
) -> None:
    other = another(prefill)
    blob, base, _ = other.hear()
    name = decode.add_remote_agent(blob)
    ours = decode.prep_xfer_dlist("", rows(memory.ctypes.data), "DRAM")
    theirs = decode.prep_xfer_dlist(name, rows(base), "DRAM")

    def pull() -> str:
        handle = decode.make_prepped_xfer("READ", ours, [0], theirs, [1])
        return finish(decode, handle)

    assert pull() == "DONE"
    for _ in range(20):
        other.tell("deregister")
        other.hear()
        with pytest.raises(nixl.nixlNotFoundError):
            pull()
        other.tell("register")
        other.hear()
        assert pull() == "DONE"
    other.tell("more")
    there = other.hear()
    theirs = decode.prep_xfer_dlist(name, rows(there), "DRAM")
    assert pull() == "DONE" and (memory[:BLOCK] == 7).all()


def test_a_push_to_memory_that_has_just_been_registered_again_needs_nobody_who_polls(
    another: Callable[..., Other], decode: nixl_agent, memory: Memory
) -> None:
    other = another(prefill)
    blob, base, _ = other.hear()
    name = decode.add_remote_agent(blob)
    ours = decode.prep_xfer_dlist("", rows(memory.ctypes.data), "DRAM")
    theirs = decode.prep_xfer_dlist(name, rows(base), "DRAM")
    pushed = []
    for number in range(30):
        for what in ("deregister", "register"):
            other.tell(what)
            other.hear()
        # Handles are kept: one that is dropped is cancelled.
        pushed.append(decode.make_prepped_xfer("WRITE", ours, [0], theirs, [1], b"%d" % number))
        decode.transfer(pushed[-1])
        said: list[bytes] = []

        def told(said: list[bytes] = said) -> bool:
            other.tell("notifs")
            said.extend(other.hear().get("decode", []))
            return bool(said)

        until(told)
        assert said == [b"%d" % number]


def test_partial_metadata_tells_of_some_memory_only(
    another: Callable[..., Other], decode: nixl_agent, memory: Memory
) -> None:
    other = another(prefill)
    _, base, _ = other.hear()
    other.tell("partial")
    alone, introducing = other.hear()
    with pytest.raises(nixl.nixlNotFoundError, match="connection info"):
        decode.add_remote_agent(alone)
    name = decode.add_remote_agent(introducing)
    first, second = ([(base + block * BLOCK, BLOCK, 0)] for block in (0, 1))
    assert decode.check_remote_metadata(name, decode.get_xfer_descs(first, "DRAM"))
    assert not decode.check_remote_metadata(name, decode.get_xfer_descs(second, "DRAM"))
    decode.prep_xfer_dlist(name, first, "DRAM")
    with pytest.raises(nixl.nixlNotFoundError):
        decode.prep_xfer_dlist(name, second, "DRAM")


def test_metadata_goes_over_a_socket(another: Callable[..., Other], memory: Memory) -> None:
    other = another(prefill, "prefill", 0)
    _, base, port = other.hear()
    decode = agent_named("decode", enable_listen_thread=True, listen_port=0)
    decode.fetch_remote_metadata("prefill", "localhost", port)
    until(lambda: decode.check_remote_metadata("prefill"))
    decode.send_local_metadata("127.0.0.1", port)
    decode.register_memory([(memory.ctypes.data, BYTES, 0, "")], "DRAM")
    ours = decode.prep_xfer_dlist("", rows(memory.ctypes.data), "DRAM")
    theirs = decode.prep_xfer_dlist("prefill", rows(base), "DRAM")
    assert finish(decode, decode.make_prepped_xfer("READ", ours, [0], theirs, [1])) == "DONE"
    with pytest.raises(nixl.nixlInvalidParamError, match="address"):
        decode.send_local_metadata()
    third = agent_named("third", enable_listen_thread=True, listen_port=0)
    assert third.listen_port is not None
    decode.send_local_metadata("127.0.0.1", third.listen_port)
    until(lambda: third.check_remote_metadata("decode"))
    decode.invalidate_local_metadata("127.0.0.1", third.listen_port)
    until(lambda: not third.check_remote_metadata("decode"))


def test_a_peer_that_is_lost_is_told_and_one_that_starts_again_is_another(
    another: Callable[..., Other], decode: nixl_agent, memory: Memory
) -> None:
    other = another(prefill)
    blob, base, _ = other.hear()
    name = decode.add_remote_agent(blob)
    ours = decode.prep_xfer_dlist("", rows(memory.ctypes.data), "DRAM")
    theirs = decode.prep_xfer_dlist(name, rows(base), "DRAM")
    other.kill()
    until(lambda: not decode.check_remote_metadata(name))
    with pytest.raises(nixl.nixlRemoteDisconnectError):
        finish(decode, decode.make_prepped_xfer("READ", ours, [0], theirs, [0]))
    with pytest.raises(nixl.nixlRemoteDisconnectError):
        decode.add_remote_agent(blob)
    successor = another(prefill)
    blob, base, _ = successor.hear()
    assert decode.add_remote_agent(blob) == name and decode.check_remote_metadata(name)
    with pytest.raises(nixl.nixlNotFoundError):
        decode.make_prepped_xfer("READ", ours, [0], theirs, [0])
    theirs = decode.prep_xfer_dlist(name, rows(base), "DRAM")
    assert finish(decode, decode.make_prepped_xfer("READ", ours, [0], theirs, [1])) == "DONE"


def test_a_release_under_way_cancels_and_raises_until_it_is_fenced(
    another: Callable[..., Other], decode: nixl_agent, memory: Memory
) -> None:
    other = another(prefill)
    blob, base, _ = other.hear()
    name = decode.add_remote_agent(blob)
    ours = decode.prep_xfer_dlist("", rows(memory.ctypes.data), "DRAM")
    theirs = decode.prep_xfer_dlist(name, rows(base), "DRAM")
    every = np.arange(BLOCKS)
    warm = decode.make_prepped_xfer("WRITE", ours, every, theirs, every)
    assert finish(decode, warm) == "DONE"
    other.stop()
    memory[:] = 5
    handle = decode.make_prepped_xfer("WRITE", ours, every, theirs, every, b"never")
    assert decode.transfer(handle) == "PROC"
    with pytest.raises(nixl.nixlRepostActiveError):
        decode.transfer(handle)
    with pytest.raises(nixl.nixlBackendError, match="release it again"):
        decode.release_xfer_handle(handle)
    other.wake()

    def released() -> bool:
        try:
            decode.release_xfer_handle(handle)
        except nixl.nixlBackendError:
            return False
        return True

    until(released)
    decode.release_xfer_handle(handle)
    other.tell("memory")
    before = other.hear()
    other.tell("memory")
    assert other.hear() == before, "it is fenced: nothing lands any more"
    other.tell("notifs")
    assert other.hear() == {}


def test_an_agent_reaches_itself(decode: nixl_agent, memory: Memory) -> None:
    memory[:BLOCK] = 3
    ours = decode.prep_xfer_dlist("", rows(memory.ctypes.data), "DRAM")
    back = decode.prep_xfer_dlist("decode", rows(memory.ctypes.data), "DRAM")
    assert finish(decode, decode.make_prepped_xfer("WRITE", ours, [0], back, [5], b"to myself")) == "DONE"
    assert (memory[5 * BLOCK : 6 * BLOCK] == 3).all()
    assert decode.check_remote_xfer_done("decode", b"to my")
    assert not decode.check_remote_xfer_done("decode", b"to my")
    with pytest.raises(nixl.nixlInvalidParamError, match="own name"):
        decode.add_remote_agent(decode.get_agent_metadata())


def test_strided_lists_stand_for_their_blocks(decode: nixl_agent, memory: Memory) -> None:
    memory[:] = pattern()
    base = memory.ctypes.data
    every_other = np.array([[base, BLOCK, 0, 2 * BLOCK, BLOCKS // 2]], np.uint64)
    ours = decode.prep_xfer_dlist("", every_other, "DRAM")
    back = decode.prep_xfer_dlist("decode", every_other, "DRAM")
    assert finish(decode, decode.make_prepped_xfer("READ", ours, [0], back, [3])) == "DONE"
    assert memory.view(np.uint32)[0] == 6
    with pytest.raises(nixl.nixlInvalidParamError):
        decode.prep_xfer_dlist("", np.array([[base, BLOCK, 0, 2**63, 4]], np.uint64), "DRAM")


def test_long_lists_cost_no_python_for_each_descriptor(decode: nixl_agent, memory: Memory) -> None:
    count = 100_000
    starts = np.random.default_rng(1).permutation(BYTES // 8)[:count].astype(np.uint64) * np.uint64(8)
    listed = np.stack([starts + np.uint64(memory.ctypes.data), np.full(count, 8, np.uint64)], axis=1)
    listed = np.concatenate([listed, np.zeros((count, 1), np.uint64)], axis=1)
    ours = decode.prep_xfer_dlist("", listed, "DRAM")
    back = decode.prep_xfer_dlist("decode", listed, "DRAM")
    every = np.arange(count, dtype=np.int32)
    assert finish(decode, decode.make_prepped_xfer("READ", ours, every, back, every)) == "DONE"


def test_lists_can_be_sent_and_reading_them_runs_nothing(decode: nixl_agent, memory: Memory) -> None:
    descs = decode.get_xfer_descs(rows(memory.ctypes.data), "DRAM")
    assert decode.deserialize_descs(decode.get_serialized_descs(descs)) == descs
    registered = decode.get_reg_descs(rows(memory.ctypes.data), "DRAM")
    assert decode.deserialize_descs(decode.get_serialized_descs(registered)) == registered
    assert registered.trim() == descs
    with pytest.raises(nixl.nixlInvalidParamError, match=r"kvferry\.compat\.nixl"):
        decode.deserialize_descs(b"cposix\nsystem\n(S'true'\ntR.")


def test_mistakes_have_nixl_s_names(decode: nixl_agent, memory: Memory) -> None:
    base = memory.ctypes.data
    ours = decode.prep_xfer_dlist("", rows(base), "DRAM")
    back = decode.prep_xfer_dlist("decode", rows(base), "DRAM")
    idle = decode.make_prepped_xfer("READ", ours, [0], back, [1])
    shorter = decode.prep_xfer_dlist("decode", rows(base, 1, 8), "DRAM")
    parameter, unknown, unsupported = (
        nixl.nixlInvalidParamError,
        nixl.nixlNotFoundError,
        nixl.nixlNotSupportedError,
    )
    mistakes: list[tuple[type[Exception], Callable[[], object]]] = [
        (nixl.nixlNotPostedError, lambda: decode.check_xfer_state(idle)),
        (parameter, lambda: decode.make_prepped_xfer("SWAP", ours, [0], back, [0])),
        (parameter, lambda: decode.make_prepped_xfer("READ", ours, [0], back, [0, 1])),
        (parameter, lambda: decode.make_prepped_xfer("READ", ours, [BLOCKS], back, [0])),
        (parameter, lambda: decode.make_prepped_xfer("READ", ours, [0], shorter, [0])),
        (parameter, lambda: decode.make_prepped_xfer("READ", back, [0], ours, [0])),
        (nixl.nixlMismatchError, lambda: decode.add_remote_agent(b"nonsense")),
        (nixl.nixlMismatchError, lambda: decode.add_remote_agent(b"KVFNIXL1{}")),
        (nixl.nixlMismatchError, lambda: decode.add_remote_agent(b"nixlSerDes|Agent|4|name")),
        (parameter, lambda: decode.get_xfer_descs([(base, 8, 0)])),
        (parameter, lambda: decode.get_xfer_descs([(base, 8)], "DRAM")),
        (parameter, lambda: decode.register_memory([(base + BYTES - 8, 16, 0, "")], "DRAM")),
        (unknown, lambda: decode.prep_xfer_dlist("nobody", rows(base), "DRAM")),
        (unknown, lambda: decode.prep_xfer_dlist("", rows(base, BLOCKS + 1), "DRAM")),
        (unknown, lambda: decode.send_notif("nobody", b"hello")),
        (unknown, lambda: decode.deregister_memory(decode.get_reg_descs([(base, 8, 0, "")], "DRAM"))),
        (unknown, lambda: decode.register_memory([(base, 8, 0, "")], "DRAM", backends=["GDS"])),
        (unknown, lambda: nixl_agent("files", nixl_agent_config(backends=["POSIX"]))),
        (unsupported, lambda: decode.register_memory([(base, 8, 0, "")], "VRAM")),
        (unsupported, lambda: decode.prep_mem_view(None)),
        (nixl.nixlNoTelemetryError, lambda: nixl_agent("untold").get_xfer_telemetry(idle)),
    ]
    for number, (error, mistake) in enumerate(mistakes):
        with pytest.raises(error):
            mistake()
            pytest.fail(f"mistake {number} went through")


@WITHOUT_ADAPTERS
def test_rdma_that_is_demanded_and_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_TRANSPORT", "rdma")
    with pytest.raises(nixl.nixlInvalidParamError, match="no RDMA, and it was demanded"):
        agent_named("demanding")


def test_what_others_send_to_the_metadata_port_harms_nobody(decode: nixl_agent) -> None:
    listening = agent_named("listening", enable_listen_thread=True, listen_port=0)
    assert listening.listen_port is not None
    head = b"KVFM"
    for garbage in (
        b"",
        b"x" * 64,
        head + b"L" + b"\xff" * 4,
        head + b"I" + b"\2\0\0\0{}",
        head + b"Z" + bytes(4),
    ):
        with socket.create_connection(("127.0.0.1", listening.listen_port), timeout=20) as connection:
            # Closed, at whichever of these calls we learn of it; never kept waiting for 20 s.
            try:
                connection.sendall(garbage)
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(1) == b""
            except OSError as closed:
                assert closed.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN), closed
    decode.send_local_metadata("127.0.0.1", listening.listen_port)
    until(lambda: listening.check_remote_metadata("decode"))


def test_an_agent_that_is_dropped_gives_everything_back(memory: Memory) -> None:
    # What other tests have left behind is not this one's.
    gc.collect()
    regions = process_registry().region_count
    agent = agent_named("dropped", enable_listen_thread=True, listen_port=0)
    agent.register_memory([(memory.ctypes.data, BYTES, 0, "")], "DRAM")
    port, address = agent.listen_port, agent._engine.address
    assert port is not None
    del agent
    gc.collect()
    assert process_registry().region_count == regions
    for gone in (port, int(address.rpartition(":")[2])):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", gone), timeout=20)


def test_an_agent_is_forgotten_by_its_own_word_only(decode: nixl_agent) -> None:
    listening = agent_named("listening")
    listening.add_remote_agent(decode.get_agent_metadata())
    namesake = agent_named("decode")
    for said, known in ((namesake, True), (decode, False)):
        message = {"name": "decode", "incarnation": f"{said._engine.incarnation:016x}"}
        listening._answer(b"I", json.dumps(message).encode())
        assert listening.check_remote_metadata("decode") == known
