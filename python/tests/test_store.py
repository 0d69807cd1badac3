"""Objects in a pool with a real master: the typed interface, and that of Mooncake's store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import kvferry
import numpy as np
import pytest
from kvferry.compat.mooncake.store import MooncakeDistributedStore, ReplicateConfig
from masters import COMMAND, HERE, Master
from other import Other, Pipe
from patience import DEADLINE_S, until

MIB = 1 << 20


@pytest.fixture
def master(start: Callable[..., Master]) -> Master:
    return start(COMMAND, *HERE, "--recovery_window_ms=0")


def lends(pipe: Pipe, master: str) -> None:
    """A process that lends memory until it is told to go."""
    engine = kvferry.Engine(listen="127.0.0.1:0")
    with kvferry.Store(engine, master) as store:
        lent = store.lend(16 * MIB, "lender")
        assert lent.wait(DEADLINE_S)
        pipe.tell(lent.state)
        pipe.hear()


@pytest.fixture
def store(master: Master, another: Callable[..., Other]) -> Iterator[kvferry.Store]:
    """A store of this process, in a pool to which another one lends memory."""
    lender = another(lends, master.address)
    assert lender.hear() == "mounted"
    with (
        kvferry.Engine(listen="127.0.0.1:0") as engine,
        kvferry.Store(engine, master.address, host="here") as store,
    ):
        yield store
    lender.tell()
    assert lender.end() == 0


def test_what_was_put_is_got_into_other_memory(store: kvferry.Store) -> None:
    with kvferry.process_registry().allocate(2 * MIB) as cache:
        cache.write(0, bytes(range(256)) * 16)
        cache.write(MIB, b"\x07" * 100)
        sources: list[Any] = [[cache.span(0, 4096), cache.span(MIB, 100)], cache.span(MIB, 50)]
        assert store.put_all(["a", "b"], sources) == [None, None]
        assert store.exist(["a", "none", "b"]) == [True, False, True]
        assert store.size("a") == 4196
        target = cache.span(65536, 8192)
        got = store.get_all(["a", "none"], [target, cache.span(90000, 10)])
        assert got[0] == 4196
        assert isinstance(got[1], kvferry.StoreError) and got[1].mooncake_code == -704
        assert cache.read(65536, 4196) == bytes(range(256)) * 16 + b"\x07" * 100


def test_an_object_that_is_there_stays_as_it_is(store: kvferry.Store) -> None:
    with kvferry.process_registry().allocate(MIB) as cache:
        cache.write(0, b"first")
        assert store.put_all(["k"], [cache.span(0, 5)]) == [None]
        cache.write(0, b"other")
        assert store.put_all(["k"], [cache.span(0, 5)]) == [None]
        assert store.get_all(["k"], [cache.span(100, 5)]) == [5]
        assert cache.read(100, 5) == b"first"


def test_tenants_do_not_see_each_others_objects(store: kvferry.Store) -> None:
    other = store.for_tenant("other")
    with kvferry.process_registry().allocate(MIB) as cache:
        assert store.put_all(["k"], [cache.span(0, 5)]) == [None]
        assert other.exist(["k"]) == [False]
        assert other.remove_matching(force=True) == 0
        assert store.exist(["k"]) == [True]


def test_objects_are_removed_by_name_and_by_what_their_names_have_in_common(store: kvferry.Store) -> None:
    names = ["a@1", "a@2", "b@1", "c"]
    with kvferry.process_registry().allocate(MIB) as cache:
        assert store.put_all(names, [cache.span(0, 5)] * 4) == [None] * 4
        (gone, unknown) = store.remove(["c", "none"])
        assert gone is None
        assert isinstance(unknown, kvferry.StoreError) and unknown.mooncake_code == -704
        assert store.remove_matching(prefix="a@") == 2
        assert store.remove_matching(regex="1$") == 1
        assert store.exist(names) == [False] * 4
        with pytest.raises(ValueError, match="not both"):
            store.remove_matching(prefix="a", regex="b")


def test_a_store_that_was_closed_says_so(master: Master) -> None:
    with kvferry.Engine(listen="127.0.0.1:0") as engine:
        store = kvferry.Store(engine, master.address)
        assert store.status()["joined"]
        store.close()
        store.close()
        with pytest.raises(kvferry.StoreError, match="closed"):
            store.exist(["k"])


def test_a_master_that_is_not_there_is_an_error_in_time() -> None:
    with (
        kvferry.Engine(listen="127.0.0.1:0") as engine,
        pytest.raises(kvferry.StoreError, match=r"127\.0\.0\.1:1 ") as error,
    ):
        kvferry.Store(engine, "127.0.0.1:1", patience=0.2)
    assert error.value.retryable and error.value.mooncake_code == -900


def test_a_process_ends_with_its_own_code_whatever_is_lent(master: Master) -> None:
    script = (
        "import kvferry\n"
        "engine = kvferry.Engine(listen='127.0.0.1:0')\n"
        f"store = kvferry.Store(engine, {master.address!r})\n"
        "lent = store.lend(64 << 20, 'brief')\n"
        "raise SystemExit(7)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False, timeout=DEADLINE_S)
    assert ended.returncode == 7
    until(lambda: master.get("/get_all_segments") == (200, ""))


@pytest.fixture
def mooncake(master: Master) -> Iterator[MooncakeDistributedStore]:
    """A store by Mooncake's interface that lends what it puts into."""
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MIB, 0, "tcp", "", master.address) == 0
    # Memory is lent in the background.
    until(lambda: store.put("first", b"1") == 0)
    yield store
    assert store.close() == 0


def test_mooncakes_calls_for_bytes(mooncake: MooncakeDistributedStore) -> None:
    assert mooncake.put("k", b"value") == 0
    assert mooncake.put("k", b"other") == 0, "what is there is left as it is"
    assert mooncake.put_parts("p", b"one", b"two") == 0
    assert mooncake.get("k") == b"value"
    assert mooncake.get("p") == b"onetwo"
    assert mooncake.get("none") == b""
    assert mooncake.get_size("p") == 6
    assert mooncake.get_size("none") == -704
    assert [mooncake.is_exist(key) for key in ("k", "none")] == [1, 0]
    assert mooncake.put("empty", b"") == -600
    replicas = mooncake.batch_get_replica_desc(["k", "none"])
    assert list(replicas) == ["k"]
    assert [one.is_memory_replica() for one in replicas["k"]] == [True]
    assert not replicas["k"][0].is_disk_replica() and not replicas["k"][0].is_local_disk_replica()


def test_mooncakes_calls_for_registered_memory(mooncake: MooncakeDistributedStore) -> None:
    memory = np.arange(4096, dtype=np.uint8)
    at = memory.ctypes.data
    assert mooncake.register_buffer(at, memory.nbytes) == 0
    config = ReplicateConfig(preferred_segment=mooncake.get_hostname(), group_ids=["g", "g"])
    put = mooncake.batch_put_from_multi_buffers(
        ["a", "b"], [[at, at + 512], [at]], [[256, 256], [10]], config
    )
    assert put == [0, 0]
    got = mooncake.batch_get_into_multi_buffers(
        ["a", "a", "none", "b"],
        [[at + 1024, at + 2048], [at + 1536], [at + 3000], [at + 4000]],
        [[300, 300], [512], [1], [5]],
    )
    assert got == [512, 512, -704, -10]
    expected = np.concatenate([memory[:256], memory[512:768]])
    assert np.array_equal(np.concatenate([memory[1024:1324], memory[2048:2260]]), expected)
    assert np.array_equal(memory[1536:2048], expected)
    assert mooncake.get_into("b", at, 10) == 10
    assert mooncake.put_from("c", at, 10) == 0
    assert mooncake.unregister_buffer(at) == 0
    assert mooncake.unregister_buffer(at) == -600
    assert mooncake.put_from("d", at, 10) == -800
    assert "not registered" in mooncake.last_error or "region" in mooncake.last_error


def test_mooncakes_calls_that_remove(mooncake: MooncakeDistributedStore) -> None:
    pinned = ReplicateConfig(with_hard_pin=True)
    assert mooncake.put("pinned", b"1", pinned) == 0
    assert mooncake.put("x1", b"1") == mooncake.put("x2", b"1") == 0
    assert mooncake.remove("pinned") == -706
    assert mooncake.remove("none") == -704
    assert mooncake.remove_by_regex("^x") == 2
    assert mooncake.remove_by_regex("(") < 0
    assert mooncake.remove_all(force=True) == 2
    assert mooncake.is_exist("pinned") == 0


def test_a_store_of_mooncakes_that_has_ended_answers_with_codes(master: Master) -> None:
    store = MooncakeDistributedStore()
    assert store.is_exist("k") == -601
    assert store.health_check() == 1
    settings = {"local_hostname": "127.0.0.1", "global_segment_size": 0, "tenant_id": "t"}
    assert store.setup({**settings, "protocol": "rdma"}) == -600
    assert "no RDMA, and it was demanded" in store.last_error
    assert store.setup({**settings, "master_server_address": master.address}) == 0
    assert store.setup("127.0.0.1") == -600, "it is set up already"
    assert store.health_check() == 0
    assert store.put("k", b"1") == -200, "nobody lends memory"
    assert store.close() == 0
    assert store.close() == 0
    assert store.batch_is_exist(["a", "b"]) == [-601, -601]
    with pytest.raises(ValueError, match="not set up"):
        store.remove_all(force=True)
