"""NixlConnector (pull) by module path behind the real router, and NixlPushConnector by a name of ours.

Both to decode instances of one rank; pushes then to one of two ranks, too. vLLM's ranks spin while an
instance waits for blocks, and two of them would leave the prefill instance next to nothing of two cores: they
are given what it leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from servers import Router, Server, at_once, complete, free_port, prompt, until


@dataclass
class Pair:
    """A prefill and a decode instance, and the router before them."""

    prefill: Server
    decode: Server
    router: Router

    def both_idle(self) -> bool:
        return self.prefill.idle() and self.decode.idle()


PULL = {"kv_connector": "NixlConnector", "kv_connector_module_path": "kvferry.vllm"}
PUSH = {
    "kv_connector": "KvferryNixlPushConnector",
    "kv_connector_extra_config": {"push_registration_timeout": 5},
}


def start(logs: Path, name: str, role: str, transfer: dict[str, Any], **more: Any) -> Server:
    environment = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
    return Server(name, logs, transfer={**transfer, "kv_role": role}, environment=environment, **more)


# Pushes come first: what is asked of them alone has the same instances then.
@pytest.fixture(scope="module", params=[PUSH, PULL], ids=["push", "pull"])
def pair(logs: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    kind = request.param["kv_connector"]
    prefill = start(logs, f"prefill-{kind}", "kv_producer", request.param)
    decode = start(logs, f"decode-{kind}", "kv_consumer", request.param)
    router = None
    try:
        prefill.up()
        decode.up()
        router = Router(logs, "nixl", [prefill.url], decode.url)
        router.up()
        yield Pair(prefill, decode, router)
    finally:
        for process in (router, decode, prefill):
            if process is not None:
                process.stop()


def test_metrics_are_there_at_zero_before_anything_happened(pair: Pair) -> None:
    for server in (pair.prefill, pair.decode):
        for name in ("xfer_time_seconds_count", "bytes_transferred_count", "num_failed_transfers_total"):
            assert server.metric(f"vllm:nixl_{name}") == 0
        for outcome in ("done", "failed"):
            assert server.metric("kvferry_transfers_total", outcome=outcome) == 0


def test_requests_give_the_tokens_of_a_lone_decode_instance(pair: Pair) -> None:
    texts = [prompt(length) for length in (40, 333, 1500)]
    expected = [complete(pair.decode.url, text).tokens for text in texts]
    for text, tokens in zip(texts, expected, strict=True):
        got = complete(pair.router.url, text)
        assert got.status == 200, got.body
        assert got.tokens == tokens
    texts = [prompt(100 + 37 * number) for number in range(8)]
    with at_once() as pool:
        expected = [answer.tokens for answer in pool.map(lambda text: complete(pair.decode.url, text), texts)]
        answers = list(pool.map(lambda text: complete(pair.router.url, text), texts))
    assert [answer.tokens for answer in answers] == expected
    until("all blocks are free", 15, pair.both_idle)

    def moved(name: str, **labels: str) -> float:
        # Who moves them counts them.
        return sum(server.metric(name, **labels) for server in (pair.prefill, pair.decode))

    until("vLLM has counted them", 10, lambda: moved("vllm:nixl_xfer_time_seconds_count") == 11)
    until("we have counted them", 10, lambda: moved("kvferry_transfers_total", outcome="done") == 11)


@pytest.mark.parametrize("pair", [PUSH], ids=["push"], indirect=True)
def test_a_push_to_two_ranks_gives_the_tokens_of_a_lone_decode_instance(pair: Pair, logs: Path) -> None:
    ranks = ("--tensor-parallel-size", "2")
    with ExitStack() as started:
        decode = start(logs, "decode-of-two-ranks", "kv_consumer", PUSH, arguments=ranks, niceness=19)
        started.callback(decode.stop)
        decode.up()
        router = Router(logs, "nixl", [pair.prefill.url], decode.url)
        started.callback(router.stop)
        router.up()
        before = pair.prefill.metric("kvferry_transfers_total", direction="sent", outcome="done")
        texts = [prompt(length) for length in (40, 333, 1500)]
        expected = [complete(decode.url, text).tokens for text in texts]
        with at_once() as pool:
            answers = list(pool.map(lambda text: complete(router.url, text), texts))
        assert [answer.tokens for answer in answers] == expected, [answer.body for answer in answers]
        until("all blocks are free", 15, lambda: pair.prefill.idle() and decode.idle())
        # One to each rank.
        pair.prefill.counts(before + 6, "kvferry_transfers_total", direction="sent", outcome="done")
        assert pair.prefill.metric("kvferry_transfers_total", outcome="failed") == 0
