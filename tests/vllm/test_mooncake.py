"""MooncakeConnector by KVFERRY_REPLACE=1, in-tree configuration, behind the real router.

One prefill and one decode instance for all tests of this file, which run in order: the later ones kill and
stop the prefill instance.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest
from detour import OTHER, Detour
from servers import HOST, Router, Server, at_once, body, complete, free_port, prompt, streamed, until

LONG = 1500
SLICE = 1 << 20
"""What of a write is acknowledged at once."""


def transfer(role: str, engine_id: str) -> dict[str, object]:
    """vLLM's own configuration: nothing in it is kvferry's."""
    return {
        "kv_connector": "MooncakeConnector",
        "kv_role": role,
        "engine_id": engine_id,
        "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
    }


@dataclass
class Pair:
    """A prefill and a decode instance, and the router before them."""

    logs: Path
    prefill_port: int
    bootstrap_port: int
    engine_id: str
    prefill: Server
    decode: Server
    router: Router

    def start_prefill(self) -> Server:
        self.prefill = start_prefill(self.logs, self.engine_id, self.prefill_port, self.bootstrap_port)
        return self.prefill

    def parameters(self) -> tuple[dict[str, object], dict[str, object]]:
        """What the router would say to the prefill and to the decode instance."""
        transfer_id = f"xfer-{uuid.uuid4()}"
        first = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
        second = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": transfer_id,
            "remote_bootstrap_addr": f"http://{HOST}:{self.bootstrap_port}",
            "remote_engine_id": self.engine_id,
        }
        return first, second

    def do_prefill(self, text: str) -> dict[str, object]:
        """Does the router's part: has a prompt prefilled, and returns what to ask the decode instance
        with."""
        first, second = self.parameters()
        assert complete(self.prefill.url, text, tokens=1, kv_transfer_params=first).status == 200
        return second

    def done(self) -> list[float]:
        """How many transfers the one has sent, and the other received."""
        name = "kvferry_transfers_total"
        return [
            self.prefill.metric(name, direction="sent", outcome="done"),
            self.decode.metric(name, direction="received", outcome="done"),
        ]

    def both_idle(self) -> bool:
        return self.prefill.idle() and self.decode.idle()

    def stop_prefill_worker(self) -> None:
        """Stops the process that sends, and not the one that answers HTTP."""
        self.prefill.signal(signal.SIGSTOP, "Worker")


def start_prefill(logs: Path, engine_id: str, port: int, bootstrap: int) -> Server:
    environment = {"KVFERRY_REPLACE": "1", "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(bootstrap)}
    return Server(
        "prefill", logs, transfer=transfer("kv_producer", engine_id), port=port, environment=environment
    )


@pytest.fixture(scope="module")
def pair(logs: Path) -> Iterator[Pair]:
    engine_id = f"prefill-{uuid.uuid4()}"
    port, bootstrap = free_port(), free_port()
    prefill = start_prefill(logs, engine_id, port, bootstrap)
    # Small enough that blocks are used again soon.
    decode = Server(
        "decode",
        logs,
        transfer=transfer("kv_consumer", f"decode-{uuid.uuid4()}"),
        environment={"KVFERRY_REPLACE": "1"},
        cache_mib=12,
    )
    both = Pair(logs, port, bootstrap, engine_id, prefill, decode, None)  # type: ignore[arg-type]
    try:
        decode.up()
        prefill.up()
        both.router = Router(logs, "mooncake", [prefill.url, str(bootstrap)], decode.url)
        both.router.up()
        yield both
    finally:
        for process in (both.router, decode, both.prefill):
            if process is not None:
                process.stop()


def test_metrics_are_there_at_zero_before_anything_happened(pair: Pair) -> None:
    for server in (pair.prefill, pair.decode):
        for name in ("xfer_time_seconds_count", "bytes_transferred_count", "num_descriptors_count"):
            assert server.metric(f"vllm:mooncake_{name}") == 0
        for name in ("num_failed_transfers", "num_failed_recvs", "num_kv_expired_reqs"):
            assert server.metric(f"vllm:mooncake_{name}_total") == 0
        for direction in ("sent", "received"):
            for outcome in ("done", "failed"):
                labels = {"direction": direction, "transport": "tcp", "outcome": outcome}
                assert server.metric("kvferry_transfers_total", **labels) == 0
        assert server.metric("kvferry_fallbacks_total") == 0


@dataclass
class Detours:
    """A way from the prefill to the decode instance that leads through this process."""

    blocks: Detour
    """What carries the blocks."""
    bootstrap: str
    """The bootstrap server that sends a decode instance this way."""


@pytest.fixture
def detours(pair: Pair) -> Iterator[Detours]:
    with ExitStack() as ways:

        def detour(ports: dict[int, int], change: str = "") -> Detour:
            one = Detour(ports, change)
            ways.callback(one.close)
            return one

        def straight(server: Server) -> dict[int, int]:
            return {port: port for port in server.ports("Worker")}

        bootstrap = free_port()
        # Who asks where the prefill workers are comes to the second, and says HOST#GRANT there; blocks go to
        # the third then.
        detour({bootstrap: pair.bootstrap_port}, f"tcp://{HOST}")
        detour(straight(pair.prefill), f"{HOST}#")
        yield Detours(detour(straight(pair.decode)), f"http://{OTHER}:{bootstrap}")


def test_what_a_prefill_instance_that_is_stopped_in_mid_write_sends_when_it_wakes_lands_nowhere(
    pair: Pair, detours: Detours
) -> None:
    lost, kept = prompt(1900), prompt(1700)
    expected = complete(pair.decode.url, kept, tokens=340)
    second = {**pair.do_prefill(lost), "remote_bootstrap_addr": detours.bootstrap}
    with at_once(2) as pool:
        # Of eight slices one is there, and of the next a half. Sockets take no more than four.
        detours.blocks.hold_after(SLICE * 3 // 2)
        losing = pool.submit(complete, pair.decode.url, lost, kv_transfer_params=second)
        assert detours.blocks.holds.wait(20), "the prefill instance writes"
        pair.stop_prefill_worker()
        given_up = losing.result()
        assert given_up.status == 500, given_up.body
        assert given_up.seconds < 30
        # Its blocks go to another request: that needs more than half of all there are, as it did.
        begun = Event()
        other = pool.submit(streamed, pair.decode.url, kept, tokens=340, begun=begun)
        assert begun.wait(20), "the other request has its blocks"
        # It keeps them until the write was tried: nobody schedules it meanwhile. Memory and connections are
        # the worker's, which runs.
        pair.decode.signal(signal.SIGSTOP, "EngineCore")
        try:
            # What was under way arrives first, then what the prefill instance sends when it wakes.
            detours.blocks.release()
            pair.prefill.signal(signal.SIGCONT)
            failed = "failed (ret=-1)"
            until("the prefill instance has failed to write", 20, lambda: failed in pair.prefill.said())
            assert not other.done(), "the other request has to be there when the write is tried"
        finally:
            pair.decode.signal(signal.SIGCONT)
        assert other.result().tokens == expected.tokens
    until("all blocks are free", 10, pair.both_idle)
    # What workers count comes with the next step.
    assert complete(pair.router.url, prompt(100)).status == 200
    pair.prefill.counts(1, "vllm:mooncake_num_failed_transfers_total")
    pair.decode.counts(1, "kvferry_transfers_total", direction="received", outcome="failed")


def test_requests_one_by_one_give_the_tokens_of_a_lone_decode_instance(pair: Pair) -> None:
    before = pair.done()
    for length in (40, 333, LONG):
        text = prompt(length)
        expected = complete(pair.decode.url, text)
        got = complete(pair.router.url, text)
        assert got.status == 200, got.body
        assert got.tokens == expected.tokens
    after = [count + 3 for count in before]
    until("both have counted three more", 10, lambda: pair.done() == after)
    until("all blocks are free", 10, pair.both_idle)


def test_requests_at_once_give_the_tokens_of_a_lone_decode_instance(pair: Pair) -> None:
    texts = [prompt(100 + 37 * number) for number in range(8)]
    with at_once() as pool:
        expected = [answer.tokens for answer in pool.map(lambda text: complete(pair.decode.url, text), texts)]
        answers = list(pool.map(lambda text: complete(pair.router.url, text), texts))
    assert [answer.status for answer in answers] == [200] * 8
    assert [answer.tokens for answer in answers] == expected
    until("all blocks are free", 10, pair.both_idle)


def test_a_client_that_goes_in_mid_transfer_leaves_no_block_held(pair: Pair) -> None:
    text = prompt(LONG)
    second = pair.do_prefill(text)
    pair.stop_prefill_worker()
    request = body(text, tokens=12, stream=True, kv_transfer_params=second)
    with httpx.Client(timeout=60) as client:
        asking = Thread(
            target=ask_and_go, args=(client, f"{pair.decode.url}/v1/completions", request), daemon=True
        )
        asking.start()
        until("the decode instance holds blocks for it", 10, lambda: not pair.decode.idle())
    pair.prefill.signal(signal.SIGCONT)
    until("all blocks are free", 30, pair.both_idle)
    assert complete(pair.router.url, prompt(100)).status == 200


def ask_and_go(client: httpx.Client, url: str, request: dict[str, object]) -> None:
    try:
        client.post(url, json=request)
    except (httpx.HTTPError, RuntimeError):
        return


def test_a_prefill_instance_that_is_killed_and_started_again_serves_again(pair: Pair) -> None:
    text = prompt(LONG)
    second = pair.do_prefill(text)
    pair.stop_prefill_worker()
    with at_once(1) as pool:
        waiting = pool.submit(complete, pair.decode.url, text, kv_transfer_params=second)
        until("the decode instance waits for it", 10, lambda: not pair.decode.idle())
        pair.prefill.kill()
        answer = waiting.result()
    assert answer.status == 500, answer.body
    assert answer.seconds < 20
    assert pair.decode.healthy()
    until("the decode instance's blocks are free", 10, pair.decode.idle)

    pair.start_prefill().up()
    text = prompt(LONG)
    expected = complete(pair.decode.url, text)

    def served() -> bool:
        got = complete(pair.router.url, text)
        assert got.status != 200 or got.tokens == expected.tokens
        return got.status == 200

    until("the router sends requests again", 60, served)
    pair.prefill.counts(1, "kvferry_transfers_total", direction="sent", outcome="done")
