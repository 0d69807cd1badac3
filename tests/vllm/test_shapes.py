"""Instances of different shapes, before one decode instance: two tensor parallel ranks, two data parallel
ranks, and a model with two groups of KV cache, of which one looks back a few tokens only."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from servers import HOST, Router, Server, at_once, complete, free_port, prompt, until


def transfer(role: str, engine_id: str) -> dict[str, Any]:
    return {
        "kv_connector": "MooncakeConnector",
        "kv_connector_module_path": "kvferry.vllm",
        "kv_role": role,
        "engine_id": engine_id,
        "kv_connector_extra_config": {"mooncake_protocol": "auto"},
    }


@dataclass
class Prefill:
    """A prefill instance, and the port of its bootstrap server."""

    server: Server
    bootstrap: int


@dataclass
class Shapes:
    """Prefill instances of two shapes, and the decode instance that both send to."""

    tensor_parallel: Prefill
    data_parallel: Prefill
    decode: Server


def start_prefill(logs: Path, name: str, *arguments: str) -> Prefill:
    bootstrap = free_port()
    environment = {"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(bootstrap)}
    server = Server(
        name,
        logs,
        transfer=transfer("kv_producer", name),
        model="window",
        environment=environment,
        arguments=arguments,
    )
    return Prefill(server, bootstrap)


@pytest.fixture(scope="module")
def shapes(logs: Path) -> Iterator[Shapes]:
    with ExitStack() as started:

        def prefill(name: str, *arguments: str) -> Prefill:
            instance = start_prefill(logs, name, *arguments)
            started.callback(instance.server.stop)
            return instance

        tensor_parallel = prefill("prefill-tp2", "--tensor-parallel-size", "2")
        data_parallel = prefill("prefill-dp2", "--data-parallel-size", "2")
        name = f"decode-{uuid.uuid4()}"
        decode = Server("decode-tp1", logs, transfer=transfer("kv_consumer", name), model="window")
        started.callback(decode.stop)
        for server in (tensor_parallel.server, data_parallel.server, decode):
            server.up()
        yield Shapes(tensor_parallel, data_parallel, decode)


@pytest.fixture
def route(logs: Path, shapes: Shapes) -> Iterator[Any]:
    """Puts a router before a prefill instance and the decode instance, and ends it after the test."""
    with ExitStack() as started:

        def route(prefill: Prefill, *arguments: str) -> Router:
            addresses = [prefill.server.url, str(prefill.bootstrap)]
            router = Router(logs, "mooncake", addresses, shapes.decode.url, *arguments)
            started.callback(router.stop)
            router.up()
            return router

        yield route


def test_two_prefill_ranks_serve_one_decode_rank_with_two_groups_of_cache(shapes: Shapes, route: Any) -> None:
    prefill, decode = shapes.tensor_parallel, shapes.decode
    router = route(prefill)
    for length in (40, 333, 1500):
        text = prompt(length)
        expected = complete(decode.url, text)
        got = complete(router.url, text)
        assert got.status == 200, got.body
        assert got.tokens == expected.tokens
    # One for each rank.
    prefill.server.counts(6, "kvferry_transfers_total", direction="sent", outcome="done")
    decode.counts(6, "kvferry_transfers_total", direction="received", outcome="done")
    until("all blocks are free", 10, lambda: prefill.server.idle() and decode.idle())


def test_a_load_that_fails_with_two_groups_of_cache_leaves_the_decode_instance_healthy(
    shapes: Shapes, route: Any
) -> None:
    prefill, decode = shapes.tensor_parallel, shapes.decode
    lost = {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "transfer_id": f"xfer-{uuid.uuid4()}",
        "remote_bootstrap_addr": f"http://{HOST}:{prefill.bootstrap}",
        "remote_engine_id": "nobody",
    }
    assert complete(decode.url, prompt(333), kv_transfer_params=lost).status == 500
    assert decode.healthy()
    text = prompt(333)
    expected = complete(decode.url, text)
    assert complete(route(prefill).url, text).tokens == expected.tokens
    until("the failure is counted", 10, lambda: decode.metric("vllm:mooncake_num_failed_recvs_total") > 0)
    until("all blocks are free", 10, lambda: prefill.server.idle() and decode.idle())


def test_two_data_parallel_ranks_prefill_behind_the_router(shapes: Shapes, route: Any) -> None:
    prefill, decode = shapes.data_parallel.server, shapes.decode
    router = route(shapes.data_parallel, "--intra-node-data-parallel-size", "2")
    texts = [prompt(100 + 37 * number) for number in range(8)]
    with at_once() as pool:
        expected = [answer.tokens for answer in pool.map(lambda text: complete(decode.url, text), texts)]
        answers = list(pool.map(lambda text: complete(router.url, text), texts))
    assert [answer.status for answer in answers] == [200] * 8, [answer.body for answer in answers]
    assert [answer.tokens for answer in answers] == expected
    sent = {"direction": "sent", "outcome": "done"}
    prefill.counts(8, "kvferry_transfers_total", **sent)
    by_rank = [prefill.metric("kvferry_transfers_total", engine=rank, **sent) for rank in ("0", "1")]
    assert all(by_rank), f"both ranks have prefilled: {by_rank}"
    until("all blocks are free", 10, lambda: prefill.idle() and decode.idle())
