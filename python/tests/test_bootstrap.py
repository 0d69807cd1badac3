"""The bootstrap server, and grants by name: what the vLLM connectors use beside transfers."""

from __future__ import annotations

import json

import kvferry
import numpy as np
import pytest
from kvferry import bootstrap
from kvferry._native import Descriptors
from kvferry.compat.mooncake.bootstrap import MooncakeBootstrapServer

ADDRESS = "127.0.0.1:0"


def test_a_worker_registers_and_is_found() -> None:
    with bootstrap.Server(ADDRESS) as server:
        url = f"http://127.0.0.1:{server.port}"
        registration = bootstrap.Registration(
            url,
            engine_id="prefill",
            rank=(0, 1, 0),
            sizes=(None, 2, 1),
            address="tcp://127.0.0.1:7001",
            incarnation=5,
            lease=10.0,
        )
        registration.wait(10.0)
        with pytest.raises(bootstrap.BootstrapError, match="not ready") as incomplete:
            bootstrap.query(url, timeout=0.0)
        assert incomplete.value.retryable
        first = bootstrap.Registration(
            url,
            engine_id="prefill",
            rank=(0, 0, 0),
            address="tcp://127.0.0.1:7000",
            incarnation=4,
            lease=10.0,
        )
        first.wait(10.0)
        assert json.loads(bootstrap.query(url)) == {
            "0": {
                "engine_id": "prefill",
                "worker_addr": {"0": {"0": "tcp://127.0.0.1:7000"}, "1": {"0": "tcp://127.0.0.1:7001"}},
                "incarnation": {"0": {"0": 4}, "1": {"0": 5}},
            }
        }
        (listed,) = bootstrap.listing(url)
        assert listed.engine_id == "prefill"
        assert listed.workers == {0: {0: "tcp://127.0.0.1:7000"}, 1: {0: "tcp://127.0.0.1:7001"}}
        assert listed.incarnations == {"tcp://127.0.0.1:7000": 4, "tcp://127.0.0.1:7001": 5}
        registration.release()
        with pytest.raises(ValueError, match="released"):
            registration.wait(1.0)


def test_a_server_whose_port_is_taken_does_not_start() -> None:
    with bootstrap.Server(ADDRESS) as server, pytest.raises(kvferry.Error, match=str(server.port)):
        bootstrap.Server(f"127.0.0.1:{server.port}")


def test_a_server_by_mooncakes_name_raises_where_its_port_is_taken_and_ends_twice() -> None:
    first = MooncakeBootstrapServer("127.0.0.1", 0)
    first.shutdown()
    first.start()
    second = MooncakeBootstrapServer("127.0.0.1", first.port)
    with pytest.raises(kvferry.Error, match=str(first.port)):
        second.start()
    second.shutdown()
    first.shutdown()
    first.shutdown()


def test_ranges_are_written_under_a_grant_that_is_known_by_its_name() -> None:
    memory, source = np.zeros(8192, np.uint8), np.ones(4096, np.uint8)
    owner_registry, registry = kvferry.Registry(), kvferry.Registry()
    with (
        kvferry.Engine(owner_registry, listen=ADDRESS) as owner,
        kvferry.Engine(registry, listen=ADDRESS) as engine,
        owner_registry.register(memory) as theirs,
        registry.register(source) as ours,
    ):
        theirs.layout(8192).publish("memory")
        target = Descriptors.from_rows([(theirs.address + 4096, 4096, 0)])
        grant = owner.grant(target, engine.incarnation, "write", 60.0)
        named = kvferry.RemoteGrant.named(owner.incarnation, grant.id, "write")
        peer = engine.connect(owner.address)
        peer.write(ours.whole(), target, grant=named).wait()
        assert memory.sum() == 4096 and memory[4096:].all()
        elsewhere = Descriptors.from_rows([(theirs.address, 4096, 0)])
        with pytest.raises(kvferry.RefusedError):
            peer.write(ours.whole(), elsewhere, grant=named).wait()
        grant.revoke()
        with pytest.raises(kvferry.RefusedError):
            peer.write(ours.whole(), target, grant=named).wait()
        with pytest.raises(kvferry.Error, match="no region covers"):
            owner.grant(Descriptors.from_rows([(1, 1, 0)]), engine.incarnation, "write", 60.0)
