"""The typed interface, between two processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kvferry
import numpy as np
import pytest
from other import Other, Pipe
from patience import until

BLOCK = 4096
BLOCKS = 256
ADDRESS = "127.0.0.1:0"
ADAPTERS = Path("/sys/class/infiniband")
WITHOUT_ADAPTERS = pytest.mark.skipif(
    ADAPTERS.is_dir() and any(ADAPTERS.iterdir()), reason="there are adapters"
)


def pattern(blocks: int = BLOCKS) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Blocks that can be told from each other."""
    return np.repeat(np.arange(blocks, dtype=np.uint32), BLOCK // 4).view(np.uint8)


def source(pipe: Pipe, access: str = "read_write") -> None:
    """Shares a layout "cache" and says where it is; ends when told to."""
    with kvferry.Engine(listen=ADDRESS) as engine:
        memory = pattern()
        with kvferry.process_registry().register(memory) as region:
            region.layout(BLOCK).publish("cache")
            region.share(access)  # type: ignore[arg-type]
            pipe.tell((engine.address, region.address))
            while (asked := pipe.hear()) is not None:
                if asked == "memory":
                    pipe.tell(memory.tobytes())
                if asked == "notification":
                    came = engine.next_notification(timeout=30)
                    pipe.tell((came.sender, came.message))


def test_blocks_are_pulled_and_pushed_between_processes(another: Callable[..., Other]) -> None:
    other = another(source)
    address, _ = other.hear()
    memory = np.zeros(BLOCKS * BLOCK, np.uint8)
    with kvferry.Engine(listen=ADDRESS) as engine, kvferry.process_registry().register(memory) as region:
        peer = engine.connect(address)
        ours, theirs = region.layout(BLOCK), peer.layout("cache")
        order = np.random.default_rng(1).permutation(BLOCKS)
        report = peer.read(theirs.blocks(order), ours.blocks(range(BLOCKS)), notify=b"pulled").wait()
        assert report.bytes == memory.nbytes and report.pairs == BLOCKS
        assert np.array_equal(memory.view(np.uint32)[:: BLOCK // 4], order)
        other.tell("notification")
        assert other.hear() == (engine.incarnation, b"pulled")

        memory[:] = 0xA5
        peer.write(ours.blocks([0, 1]), theirs.blocks([7, 9]), checksum=True).wait()
        other.tell("memory")
        seen = np.frombuffer(other.hear(), np.uint8).reshape(BLOCKS, BLOCK)
        expected = pattern().reshape(BLOCKS, BLOCK)
        expected[[7, 9]] = 0xA5
        assert np.array_equal(seen, expected)
    other.tell(None)
    assert other.end() == 0


def test_transfers_connections_and_notifications_can_be_awaited(another: Callable[..., Other]) -> None:
    other = another(source)
    address, _ = other.hear()

    async def pull(region: kvferry.Region, engine: kvferry.Engine) -> None:
        peer = await engine.connect_async(address)
        await peer.ready_async()
        theirs, ours = peer.layout("cache"), region.layout(BLOCK)
        pulls = [peer.read(theirs.blocks([n]), ours.blocks([n])) for n in range(BLOCKS)]
        reports = await asyncio.gather(*(asyncio.ensure_future(_awaited(one)) for one in pulls))
        assert sum(report.bytes for report in reports) == len(region)
        one = peer.read(theirs.blocks(range(BLOCKS)), ours.blocks(range(BLOCKS)))
        twice = await asyncio.gather(
            asyncio.ensure_future(_awaited(one)), asyncio.ensure_future(_awaited(one))
        )
        assert [report.transfer for report in twice] == [one.id] * 2
        # One that is given up takes nothing away from the next.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_awaited(engine.next_notification_async()), 0.01)
        back = engine.peer(engine.address)
        await back.ready_async()
        await back.notify(b"to itself")
        assert (await engine.next_notification_async()).message == b"to itself"

    with (
        kvferry.Engine(listen=ADDRESS) as engine,
        kvferry.process_registry().allocate(BLOCKS * BLOCK) as region,
    ):
        asyncio.run(pull(region, engine))
        assert region.read(0, len(region)) == pattern().tobytes()


async def _awaited(what: Any) -> Any:
    return await what


def test_errors_say_what_can_be_done_about_them(another: Callable[..., Other]) -> None:
    other = another(source, "read")
    address, _ = other.hear()
    with kvferry.Engine(listen=ADDRESS) as engine, kvferry.Registry().allocate(BLOCK) as elsewhere:
        with pytest.raises(kvferry.SettingError):
            engine.connect("no port")
        with pytest.raises(kvferry.UnreachableError) as unreachable:
            engine.connect("127.0.0.1:1")
        assert unreachable.value.retryable
        peer = engine.connect(address)
        with pytest.raises(kvferry.NotSharedError):
            peer.layout("nothing")
        with kvferry.process_registry().allocate(2 * BLOCK) as region:
            ours, theirs = region.layout(BLOCK), peer.layout("cache")
            with pytest.raises(kvferry.NotGrantedError) as refused:
                peer.write(ours.blocks([0]), theirs.blocks([0]))
            assert refused.value.remote == "untouched" and refused.value.peer == address
            with pytest.raises(kvferry.RequestError):
                peer.read(theirs.blocks([0, 1]), ours.blocks([0]))
            with pytest.raises(kvferry.RequestError):
                peer.read(theirs.blocks([0]), ours.blocks([2]))
            with pytest.raises(kvferry.DeadlineError):
                peer.read(theirs.blocks([0]), ours.blocks([0]), deadline=0.0).wait()
        with pytest.raises(ValueError, match="-1"):
            theirs.blocks([-1])
        with pytest.raises(TypeError, match="side of a transfer"):
            peer.read(b"memory", elsewhere.whole())  # type: ignore[arg-type]
    with pytest.raises(kvferry.ShutdownError):
        engine.connect(address)
    with pytest.raises(ValueError, match="no setting"):
        kvferry.Engine(lsten=ADDRESS)  # type: ignore[call-arg]


def granted(pipe: Pipe) -> None:
    """Grants two blocks to whom it is told, and revokes them when told to."""
    with kvferry.Engine(listen=ADDRESS) as engine, kvferry.process_registry().allocate(4 * BLOCK) as region:
        pipe.tell(engine.address)
        peer = pipe.hear()
        with engine.grant(
            [region.span(0, BLOCK), region.span(2 * BLOCK, BLOCK)], peer, "write", 60.0
        ) as grant:
            pipe.tell(grant.ticket)
            pipe.hear()
        pipe.tell(region.read(0, len(region)))
        pipe.hear()
        pipe.tell(region.read(0, len(region)))


@WITHOUT_ADAPTERS
def test_rdma_is_had_where_it_is_demanded_or_is_an_error_that_says_what_is_missing() -> None:
    with pytest.raises(kvferry.SettingError, match="no RDMA, and it was demanded") as demanded:
        kvferry.Engine(listen=ADDRESS, transport="rdma")
    assert "libibverbs" in str(demanded.value) or "no RDMA port" in str(demanded.value)
    for transport in ("rdma", "auto"):
        with pytest.raises(kvferry.SettingError, match=r"mlx5_99|libibverbs"):
            kvferry.Engine(listen=ADDRESS, transport=transport, rdma_devices="mlx5_99")
    with pytest.raises(kvferry.SettingError, match="entry 2 of the list is empty"):
        kvferry.Engine(listen=ADDRESS, rdma_devices="mlx5_0,,mlx5_1")


@WITHOUT_ADAPTERS
def test_a_peer_says_why_it_is_not_reached_by_rdma(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        directory.mkdir(mode=0o700)
    here, there = (
        kvferry.Engine(listen=ADDRESS, transport="auto", run_directory=directory) for directory in directories
    )
    peer = here.peer(there.address)
    peer.ready()
    assert peer.status()["transport"] == "tcp"
    assert peer.not_local is not None
    assert peer.not_rdma is not None and "no RDMA port that can be used" in peer.not_rdma
    peer = kvferry.Engine(listen=ADDRESS, transport="tcp").connect(there.address)
    assert (peer.not_local, peer.not_rdma) == (None, None)


def test_what_is_granted_can_be_written_until_it_is_revoked(another: Callable[..., Other]) -> None:
    other = another(granted)
    address = other.hear()
    with kvferry.Engine(listen=ADDRESS) as engine, kvferry.process_registry().allocate(2 * BLOCK) as region:
        peer = engine.connect(address)
        other.tell(engine.incarnation)
        grant = kvferry.RemoteGrant(other.hear())
        assert grant.owner == peer.incarnation and 0 < grant.remaining <= 60
        region.write(0, b"x" * 2 * BLOCK)
        peer.write([region.span(0, BLOCK), region.span(BLOCK, BLOCK)], grant).wait()
        other.tell()
        assert other.hear() == (b"x" * BLOCK + bytes(BLOCK)) * 2
        region.write(0, b"y" * 2 * BLOCK)
        with pytest.raises(kvferry.RefusedError):
            peer.write([region.span(0, BLOCK), region.span(BLOCK, BLOCK)], grant).wait()
        other.tell()
        assert b"y" not in other.hear()


def test_registered_memory_is_kept_alive_and_given_back() -> None:
    registry = kvferry.Registry()
    memory = bytearray(BLOCK)
    region = registry.register(memory)
    with pytest.raises(BufferError):
        memory.extend(b"grows, and would move")
    assert region.unregister() == [] and not region.registered
    memory.extend(b"grows")
    array = np.zeros(BLOCK, np.uint8)
    references = sys.getrefcount(array)
    region = registry.register(array)
    assert sys.getrefcount(array) > references
    del region
    gc.collect()
    assert sys.getrefcount(array) == references and registry.region_count == 0
    with pytest.raises(BufferError, match="read-only"):
        registry.register(bytes(BLOCK))
    with pytest.raises(BufferError, match="contiguous"):
        registry.register(np.zeros((8, 8))[:, 0])
    with pytest.raises(TypeError, match="no memory"):
        registry.register(object())  # type: ignore[arg-type]


class Owner:
    """Something that owns memory."""


def test_an_owner_is_kept_until_the_last_reference_to_its_region_is_gone() -> None:
    registry, array, owner = kvferry.Registry(), np.zeros(2 * BLOCK, np.uint8), Owner()
    alive = weakref.ref(owner)
    whole = registry.register_address(array.ctypes.data, array.nbytes, owner=owner)
    part = registry.register_address(array.ctypes.data + BLOCK, BLOCK)
    del owner
    whole.unregister()
    assert registry.region_count == 1
    assert alive() is not None
    part.unregister()
    assert registry.region_count == 0
    assert alive() is None


def test_an_owner_outlives_those_that_look_its_memory_up() -> None:
    registry, array = kvferry.Registry(), np.zeros(1 << 23, np.uint8)
    address, ended = array.ctypes.data, threading.Event()
    looks: list[int] = []

    def look() -> None:
        while not ended.is_set():
            with contextlib.suppress(kvferry.Error):
                looks.append(len(registry.read_at(address, array.nbytes)))

    looking = [threading.Thread(target=look) for _ in range(2)]
    for thread in looking:
        thread.start()
    try:
        for _ in range(20):
            owner = Owner()
            alive = weakref.ref(owner)
            region = registry.register_address(address, array.nbytes, owner=owner)
            del owner
            looks.clear()
            until(lambda: looks)
            region.unregister()
            # Nobody reads it any more, however many had just looked it up.
            assert registry.region_count == 0
            assert alive() is None
    finally:
        ended.set()
        for thread in looking:
            thread.join()


class Tensor:
    """What a tensor shows of itself."""

    def __init__(self, array: np.ndarray[Any, np.dtype[np.uint8]], device: str = "cpu") -> None:
        self.array, self.device = array, device

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous


def test_tensors_in_host_memory_are_registered_where_they_are() -> None:
    array = np.zeros((8, BLOCK), np.uint8)
    tensor = Tensor(array)
    references = sys.getrefcount(tensor)
    with kvferry.Registry().register(tensor) as region:
        assert (region.address, len(region)) == (array.ctypes.data, array.nbytes)
        assert sys.getrefcount(tensor) > references
        region.write(BLOCK, b"block 1")
        assert array[1, :7].tobytes() == b"block 1"
    assert sys.getrefcount(tensor) == references
    with pytest.raises(ValueError, match="cuda:0"):
        kvferry.Registry().register(Tensor(array, "cuda:0"))
    with pytest.raises(ValueError, match="contiguous"):
        kvferry.Registry().register(Tensor(array[:, 0]))


@WITHOUT_ADAPTERS
def test_memory_of_a_device_is_registered_by_its_descriptor_and_moves_by_rdma_only(
    another: Callable[..., Other],
) -> None:
    other = another(source)
    address, _ = other.hear()
    registry, on_device, length = kvferry.process_registry(), 0x0DEA_0000_0000, BLOCKS * BLOCK
    # Of a dma-buf no more is asked here than that it has a length.
    exported = os.memfd_create("exported")
    os.ftruncate(exported, length + BLOCK)
    with pytest.raises(OSError, match="Bad file descriptor"):
        registry.register_dmabuf(1 << 20, on_device, length)
    with pytest.raises(ValueError, match="-1 is no descriptor"):
        registry.register_dmabuf(-1, on_device, length)
    for offset, said in [(8, "different places of a page"), (2 * BLOCK, "reach outside")]:
        with pytest.raises(kvferry.RegistrationError, match=said):
            registry.register_dmabuf(exported, on_device, length, offset=offset)
    with (
        kvferry.Engine(listen=ADDRESS) as engine,
        registry.register_dmabuf(exported, on_device, length, offset=BLOCK) as region,
    ):
        os.close(exported)
        assert (region.address, len(region)) == (on_device, length)
        with pytest.raises(kvferry.RegistrationError, match="no processor touches"):
            region.read(0, 8)
        with pytest.raises(BufferError):
            memoryview(region)
        peer, layer = engine.connect(address), region.layout(BLOCK)
        with pytest.raises(kvferry.UnreachableError, match="memory of a device moves by RDMA only"):
            peer.write(layer.blocks([0]), peer.layout("cache").blocks([0])).wait()
    other.tell(None)
    assert other.end() == 0


def test_memory_of_the_engine_is_seen_without_copies_and_outlives_its_registration() -> None:
    region = kvferry.Registry().allocate(BLOCK)
    view = np.frombuffer(memoryview(region), np.uint8)
    assert view.ctypes.data == region.address
    view[:3] = [1, 2, 3]
    assert region.read(0, 3) == b"\1\2\3"
    region.unregister()
    view[0] = 9
    assert view[0] == 9


def test_a_wait_ends_at_once_when_it_is_interrupted(another: Callable[..., Other]) -> None:
    other = another(source)
    address, _ = other.hear()
    with kvferry.Engine(listen=ADDRESS) as engine, kvferry.process_registry().allocate(BLOCK) as region:
        peer = engine.connect(address)
        theirs = peer.layout("cache")
        other.stop()
        waiting = peer.read(theirs.blocks([0]), region.whole(), deadline=50.0)
        for wait in (waiting.wait, engine.next_notification):
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
                wait()
            assert time.monotonic() - began < 20
        with pytest.raises(TimeoutError) as goes_on:
            waiting.wait(timeout=0.01)
        assert not isinstance(goes_on.value, kvferry.DeadlineError)
        other.wake()
        assert waiting.wait().bytes == BLOCK


def test_threads_run_while_one_waits(another: Callable[..., Other]) -> None:
    with kvferry.Engine(listen=ADDRESS) as engine:
        came: list[bytes] = []
        waiting = threading.Thread(target=lambda: came.append(engine.next_notification(timeout=30).message))
        waiting.start()
        until(waiting.is_alive)
        # The lock is free, or what is waited for would come too late.
        back = engine.connect(engine.address)
        back.notify(b"wake").wait()
        waiting.join(20)
        assert came == [b"wake"]


IN_FLIGHT = """
import os, sys, threading
import numpy as np
import kvferry

address, how = sys.argv[1], sys.argv[2]
engine = kvferry.Engine(listen="127.0.0.1:0")
memory = np.zeros({bytes}, np.uint8)
region = kvferry.process_registry().register(memory)
peer = engine.connect(address)
theirs = peer.layout("cache")
there, here = theirs.blocks(range({blocks})), region.layout({block}).blocks(range({blocks}))
pulls = [peer.read(there, here) for _ in range(64)]
if how == "waiting":
    threading.Thread(target=engine.next_notification, daemon=True).start()
if how == "fork":
    child = os.fork()
    if child == 0:
        try:
            peer.notify(b"from a child")
        except kvferry.ShutdownError:
            sys.exit(0)
        sys.exit("a child used its parent's engine")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pulls[-1].wait()
if how == "raise":
    raise SystemExit(0)
"""


@pytest.mark.parametrize("how", ["plain", "waiting", "fork", "raise"])
def test_a_process_that_ends_with_transfers_under_way_ends_well(
    another: Callable[..., Other], how: str
) -> None:
    other = another(source)
    address, _ = other.hear()
    script = IN_FLIGHT.format(bytes=BLOCKS * BLOCK, blocks=BLOCKS, block=BLOCK)
    ended = subprocess.run(
        [sys.executable, "-c", script, address, how], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_engines_end_before_the_interpreter_does(another: Callable[..., Other]) -> None:
    """Memory that Python gives up last of all must not be touched by then."""
    other = another(source)
    address, _ = other.hear()
    script = IN_FLIGHT.format(bytes=BLOCKS * BLOCK, blocks=BLOCKS, block=BLOCK)
    # What is registered first is called last.
    script = "import atexit\natexit.register(lambda: print(engine, pulls[-1].done))\n" + script
    ended = subprocess.run(
        [sys.executable, "-c", script, address, "plain"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout == "<kvferry.Engine, shut down> True\n"


def test_a_process_ends_well_though_its_peer_is_stopped(another: Callable[..., Other]) -> None:
    other = another(source)
    address, _ = other.hear()
    script = IN_FLIGHT.format(bytes=BLOCKS * BLOCK, blocks=BLOCKS, block=BLOCK)
    script = script.replace("pulls = ", "os.kill(int(sys.argv[3]), 19)\npulls = ")
    ended = subprocess.run(
        [sys.executable, "-c", script, address, "plain", str(other.pid)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    other.wake()
    assert (ended.returncode, ended.stderr) == (0, "")
