"""MooncakeStoreConnector by KVFERRY_REPLACE=1, in-tree configuration: two instances, and one pool of blocks.

What one instance has computed is put into the pool, and the other loads it. Both lend memory to it.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from kvferry.vllm.store import MooncakeStoreConnector
from servers import HOME, HOST, Process, Server, complete, prompt, until
from workers import config, worker_half

LONG = 1000
BLOCKS = LONG // 32
"""Full blocks of a prompt: what is put, and loaded."""


@contextlib.contextmanager
def stopping(process: Process) -> Iterator[None]:
    """Ends a process."""
    try:
        yield
    finally:
        process.stop()


class Master(Process):
    """A master of a pool, which forgets those who die within two seconds."""

    def __init__(self, logs: Path) -> None:
        here = ["--rpc_address", HOST, "--metrics_host", HOST, "--port=0", "--metrics_port=0"]
        command = [str(HOME / "env/bin/kv-master"), *here, "--recovery_window_ms=0", "--client_ttl=2"]
        super().__init__("kv-master", command, {"NO_COLOR": "1", "RUST_LOG": "info"}, logs)
        self.address = self._said(r"clients=(\S+)")
        self._url = "http://" + self._said(r"metrics=(\S+)")

    def _said(self, pattern: str) -> str:
        found = until("the master has started", 10, lambda: re.search(pattern, self.said()))
        return str(found[1])

    def keys(self) -> set[str]:
        """All that is in the pool."""
        return set(httpx.get(f"{self._url}/get_all_keys", timeout=10).text.split())


@dataclass
class Pool:
    """Two instances, and the master of their pool."""

    master: Master
    first: Server
    second: Server

    def moved(self, server: Server, direction: str) -> float:
        """How many bytes a server's transfers with the pool had."""
        return server.metric("kvferry_transferred_bytes_total", direction=direction, transport="tcp")

    def loaded(self) -> float:
        """How many tokens the second instance has had from the pool."""
        return self.second.metric("vllm:external_prefix_cache_hits_total")


def settings_for(directory: Path, address: str, protocol: str = "tcp") -> dict[str, str]:
    """vLLM's own configuration of a store: nothing in it is kvferry's."""
    path = directory / f"store-{protocol}.json"
    settings = {
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": address,
        "protocol": protocol,
        "global_segment_size": "64MB",
        "local_buffer_size": "16MB",
    }
    path.write_text(json.dumps(settings))
    return {"MOONCAKE_CONFIG_PATH": str(path)}


@pytest.fixture(scope="module")
def pool(logs: Path) -> Iterator[Pool]:
    with ExitStack() as started:
        master = Master(logs)
        started.callback(master.stop)
        environment = settings_for(logs, master.address)
        # To have caches reset by HTTP.
        environment |= {"KVFERRY_REPLACE": "1", "VLLM_SERVER_DEV_MODE": "1"}
        servers = []
        for name in ("store-first", "store-second"):
            transfer = {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}
            servers.append(Server(name, logs, transfer=transfer, environment=environment))
            started.callback(servers[-1].stop)
        for server in servers:
            server.up()
        yield Pool(master, *servers)


def compute(pool: Pool, text: str, salt: str) -> set[str]:
    """Has the first instance compute a prompt. Returns under which keys its blocks are in the pool."""
    before = pool.master.keys()
    assert complete(pool.first.url, text, cache_salt=salt).status == 200
    until("its blocks are in the pool", 20, lambda: len(pool.master.keys() - before) >= BLOCKS)
    return pool.master.keys() - before


def test_what_one_instance_has_computed_another_loads(pool: Pool) -> None:
    text = prompt(LONG)
    # By another salt of its own, it finds nothing in the pool.
    expected = complete(pool.second.url, text).tokens
    assert pool.loaded() == 0
    assert pool.moved(pool.second, "received") == 0, "it is there from the start"
    compute(pool, text, "shared")
    got = complete(pool.second.url, text, cache_salt="shared")
    assert got.status == 200, got.body
    assert got.tokens == expected
    until("what was loaded is counted", 10, lambda: pool.loaded() == BLOCKS * 32)
    pool.second.counts(BLOCKS, "vllm:mooncake_store_operation_keys_total", operation="load_get", status="ok")
    # Where the blocks are is the master's choice; what is read and written is the same.
    assert pool.moved(pool.second, "received") == pool.moved(pool.first, "sent") > 0
    assert pool.second.metric("kvferry_transfers_total", outcome="failed") == 0
    until("all blocks are free", 10, lambda: pool.first.idle() and pool.second.idle())


def test_a_reset_leaves_nothing_that_was_computed_with_other_weights(pool: Pool) -> None:
    text = prompt(LONG)
    expected = complete(pool.second.url, text).tokens
    stale = compute(pool, text, "stale")
    before = pool.loaded()
    reply = httpx.post(f"{pool.second.url}/reset_prefix_cache?reset_external=true", timeout=30)
    assert reply.status_code == 200
    assert not stale & pool.master.keys()
    assert complete(pool.second.url, text, cache_salt="stale").tokens == expected
    assert pool.loaded() == before


def test_what_was_lent_by_an_instance_that_died_is_computed_again(pool: Pool) -> None:
    text = prompt(LONG)
    expected = complete(pool.second.url, text).tokens
    keys = compute(pool, text, "lost")
    pool.first.kill()
    until("the master has forgotten it", 10, lambda: keys - pool.master.keys())
    got = complete(pool.second.url, text, cache_salt="lost")
    assert got.status == 200, got.body
    assert got.tokens == expected
    until("all blocks are free", 10, pool.second.idle)


def worker(**extra: Any) -> Any:
    return worker_half(MooncakeStoreConnector, config("MooncakeStoreConnector", "kv_both", **extra))


def test_a_store_that_cannot_be_joined_ends_the_start_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_HOST_IP", HOST)
    monkeypatch.setenv(*settings_for(tmp_path, f"{HOST}:1", "rdma").popitem())
    with pytest.raises(RuntimeError, match="no RDMA, and it was demanded"):
        worker()
    with pytest.raises(ValueError, match="custom_mem_pool"):
        worker(custom_mem_pool="NVLINK")


def test_workers_of_one_host_have_sockets_of_their_own_and_leave_none_behind(
    tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = Master(logs)
    monkeypatch.setenv("VLLM_HOST_IP", HOST)
    monkeypatch.setenv(*settings_for(tmp_path, master.address).popitem())
    # A socket's path is a hundred characters at the most.
    with tempfile.TemporaryDirectory() as sockets, stopping(master):
        monkeypatch.setenv("VLLM_RPC_BASE_PATH", sockets)
        connectors = [worker(), worker()]
        assert len(list(Path(sockets).iterdir())) == 2
        with pytest.raises(ValueError, match="host memory only"):
            connectors[0].register_kv_caches({"layer": torch.empty(1, device="meta")})
        for connector in connectors:
            connector.shutdown()
            connector.shutdown()
        assert not list(Path(sockets).iterdir())
