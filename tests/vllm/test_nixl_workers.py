"""What kvferry's NIXL connectors do otherwise than vLLM's, on their halves."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from kvferry.compat.nixl import granted
from kvferry.vllm.in_tree_nixl import PUSH_REG_NOTIF_PREFIX
from kvferry.vllm.in_tree_nixl import connector as in_tree
from kvferry.vllm.nixl import NixlPullConnector, NixlPushConnector
from servers import HOST, free_port, until
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import HeartbeatInfo, NixlConnectorMetadata
from vllm.v1.request import RequestStatus
from workers import Instance, cache_config, config


def surroundings(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """What a server's environment says."""
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", HOST)
    monkeypatch.setenv("KVFERRY_ADVERTISE_HOST", HOST)
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(port))


class Pair:
    """A prefill instance, both halves, and a decode instance's worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.port = free_port()
        surroundings(monkeypatch, self.port)
        settings = config("NixlPullConnector", "kv_producer", "prefill")
        self.prefill = Instance(NixlPullConnector, settings, 1.0)
        self.scheduler: Any = NixlPullConnector(
            settings, KVConnectorRole.SCHEDULER, cache_config()
        ).connector_scheduler
        self.scheduler.set_xfer_handshake_metadata({(0, 0): self.prefill.connector.get_handshake_metadata()})
        self.decode = Instance(NixlPullConnector, config("NixlPullConnector", "kv_consumer"), 2.0)

    def step(self, metadata: NixlConnectorMetadata) -> Any:
        """A step of the decode worker with this work, and what ended in it."""
        self.decode.worker.start_load_kv(metadata)
        return self.decode.results()

    def pull(self, kept_for: float) -> Any:
        """Pulls block 3 into block 7, and returns how that ended."""
        self.prefill.worker._reqs_to_process.add("p-x")
        self.prefill.worker._reqs_to_send["p-x"] = time.perf_counter() + 600
        metadata = NixlConnectorMetadata()
        parameters = {
            "remote_block_ids": ([3],),
            "remote_engine_id": "prefill",
            "remote_request_id": "p-x",
            "remote_host": HOST,
            "remote_port": self.port,
            "remote_blocks_expiry_time": time.perf_counter() + kept_for,
        }
        metadata.add_new_req_to_recv("d-x", ([7],), parameters, awaiting_kvs=True)
        results = [self.step(metadata)]

        def ended() -> Any:
            if not results[-1].finished_recving:
                results.append(self.step(NixlConnectorMetadata()))
            return results[-1].finished_recving

        until("the read ends", 30, ended)
        return results[-1]

    def close(self) -> None:
        self.decode.close()
        self.prefill.close()
        self.scheduler.shutdown()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    both = Pair(monkeypatch)
    yield both
    both.close()


def renewal(pair: Pair) -> NixlConnectorMetadata:
    metadata = NixlConnectorMetadata()
    metadata.heartbeat_by_engine["prefill"] = HeartbeatInfo({"p-x"}, HOST, pair.port, 1)
    return metadata


def test_a_read_that_ends_while_its_source_is_kept_is_good(pair: Pair) -> None:
    assert pair.pull(kept_for=60).failed_recving == set()
    assert torch.equal(pair.decode.blocks([7]), pair.prefill.blocks([3]))
    until(
        "the prefill instance frees its blocks", 10, lambda: "p-x" in pair.prefill.results().finished_sending
    )


def test_a_read_that_ends_when_its_source_is_not_kept_any_more_has_failed(pair: Pair) -> None:
    assert pair.pull(kept_for=-1).failed_recving == {"d-x"}
    assert pair.decode.worker.get_block_ids_with_load_errors() == {7}
    assert pair.decode.connector.get_kv_connector_stats().data["num_kv_expired_reqs"] == [1]


def test_a_read_whose_source_was_renewed_in_time_is_good(pair: Pair) -> None:
    until("it is renewed", 10, lambda: pair.step(renewal(pair)) and pair.decode.worker._renewed)
    # As if it had been renewed for ten seconds: but for that it would have ended one ago.
    began, good_until = pair.decode.worker._renewed["prefill", "p-x"]
    pair.decode.worker._renewed["prefill", "p-x"] = (began - 10, good_until)
    assert pair.pull(kept_for=-1).failed_recving == set()


def test_a_renewal_that_came_too_late_keeps_nothing(pair: Pair) -> None:
    pair.decode.worker._renewed["prefill", "p-x"] = (time.perf_counter(), time.perf_counter() + 60)
    assert pair.pull(kept_for=-1).failed_recving == {"d-x"}


def test_a_request_that_had_nothing_to_read_is_not_late(pair: Pair) -> None:
    worker = pair.decode.worker
    worker._is_late = lambda request: True
    assert worker._pop_done_transfers({"d-x": []}) == ({"d-x"}, set())


def test_this_threads_processors_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    pair = Pair(monkeypatch)
    try:
        assert os.sched_getaffinity(0) == before
    finally:
        pair.close()


def test_a_prefill_instance_says_until_when_it_keeps_a_requests_blocks(pair: Pair) -> None:
    request = SimpleNamespace(
        request_id="p-y",
        status=RequestStatus.FINISHED_LENGTH_CAPPED,
        kv_transfer_params={"do_remote_decode": True},
        num_computed_tokens=32,
    )
    before = time.perf_counter()
    kept, parameters = pair.scheduler.request_finished(request, ([3],))
    assert kept
    assert before + 30 <= parameters["remote_blocks_expiry_time"] <= time.perf_counter() + 30


class PushPair:
    """A prefill and a decode instance of the push kind, both halves of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, timeout: float) -> None:
        self.prefill, self.prefill_scheduler, port = self.start(monkeypatch, "kv_producer", 1.0, timeout)
        self.decode, self.scheduler, _ = self.start(monkeypatch, "kv_consumer", 2.0, timeout)
        parameters = {
            "do_remote_prefill": True,
            "remote_engine_id": self.prefill.worker.engine_id,
            "remote_request_id": "x-aaaaaaaa",
            "remote_host": HOST,
            "remote_port": port,
            "tp_size": 1,
        }
        self.request = SimpleNamespace(
            request_id="x-bbbbbbbb", prompt_token_ids=[1] * 33, kv_transfer_params=parameters
        )

    def start(
        self, monkeypatch: pytest.MonkeyPatch, role: str, value: float, timeout: float
    ) -> tuple[Instance, Any, int]:
        port = free_port()
        surroundings(monkeypatch, port)
        settings = config("NixlPushConnector", role, push_registration_timeout=timeout)
        instance = Instance(NixlPushConnector, settings, value)
        scheduler: Any = NixlPushConnector(
            settings, KVConnectorRole.SCHEDULER, cache_config()
        ).connector_scheduler
        scheduler.set_xfer_handshake_metadata({(0, 0): instance.connector.get_handshake_metadata()})
        return instance, scheduler, port

    def register(self) -> None:
        """The decode instance asks for block 7, and has granted it."""
        self.ask()
        until("the push is granted", 10, lambda: len(self.decode.worker.nixl_wrapper.grants))

    def ask(self) -> None:
        """The decode instance asks for block 7."""
        blocks = SimpleNamespace(get_unhashed_block_ids_all_groups=lambda: ([7],))
        self.scheduler.update_state_after_alloc(self.request, blocks, 32)
        self.step()

    def step(self) -> Any:
        """A step of the decode instance, and what ended in it."""
        self.decode.worker.start_load_kv(self.scheduler.build_connector_meta(None))
        return self.decode.results()

    def finish(self) -> None:
        """The prefill instance has the request, in block 3."""
        metadata = NixlConnectorMetadata()
        metadata.reqs_in_batch.add("x-aaaaaaaa")
        metadata.reqs_to_send["x-aaaaaaaa"] = time.perf_counter() + 600
        metadata.push_finished_blocks["x-aaaaaaaa"] = ([3],)
        metadata.kvferry_overdue = []
        self.prefill.worker.start_load_kv(metadata)

    def close(self) -> None:
        for half in (self.decode, self.prefill):
            half.close()
        for scheduler in (self.scheduler, self.prefill_scheduler):
            scheduler.shutdown()


def test_a_push_to_several_ranks_begins_when_each_has_granted_its_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = PushPair(monkeypatch, timeout=60)
    try:
        worker = pair.prefill.worker
        started: list[dict[str, int]] = []
        monkeypatch.setattr(
            in_tree.NixlPushConnectorWorker,
            "_do_start_push_kv",
            lambda worker, request, blocks, data: started.append(data["kvferry_grants"]),
        )
        worker._push_finished_blocks["x-aaaaaaaa"] = ([3],)
        peer = worker.nixl_wrapper.engine.incarnation

        def registered(owner: int, grant: int) -> None:
            data = {"request_id": "x-bbbbbbbb", "decode_tp_size": 2}
            data |= {"kvferry_grants": {f"{owner:x}.{peer:x}": grant, f"{owner:x}.1": 7}}
            worker._handle_push_reg_notif(PUSH_REG_NOTIF_PREFIX + msgspec.msgpack.encode(data))

        registered(17, 1)
        registered(17, 1)  # by the same rank
        assert not started
        registered(18, 2)
        assert [grants[f"{owner:x}.{peer:x}"] for grants in started for owner in (17, 18)] == [1, 2]
        assert not worker.nixl_wrapper._gathered
    finally:
        pair.close()


def test_registrations_that_stay_incomplete_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(granted, "GATHERED", 2)
    pair = PushPair(monkeypatch, timeout=60)
    try:
        worker = pair.prefill.worker
        for number in range(5):
            data = {"request_id": f"x-{number}", "decode_tp_size": 1, "kvferry_grants": {}}
            worker._handle_push_reg_notif(PUSH_REG_NOTIF_PREFIX + msgspec.msgpack.encode(data))
        assert list(worker.nixl_wrapper._gathered) == ["x-3", "x-4"]
        for nonsense in (b"\xc1", msgspec.msgpack.encode({"request_id": "x", "decode_tp_size": 1})):
            worker._handle_push_reg_notif(PUSH_REG_NOTIF_PREFIX + nonsense)
        assert list(worker.nixl_wrapper._gathered) == ["x-3", "x-4"]
    finally:
        pair.close()


def test_a_request_whose_blocks_cannot_be_granted_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = PushPair(monkeypatch, timeout=60)
    try:

        def refuse(*_: Any) -> Any:
            raise RuntimeError("no grants today")

        pair.decode.worker.nixl_wrapper.grant = refuse
        pair.ask()
        assert until("the request fails", 10, lambda: pair.step().failed_recving) == {"x-bbbbbbbb"}
    finally:
        pair.close()


def test_a_push_lands_in_the_blocks_that_were_granted_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = PushPair(monkeypatch, timeout=60)
    try:
        others = [block for block in range(16) if block != 7]
        before = pair.decode.blocks(others)
        pair.register()
        pair.finish()
        ended = until("the push arrives", 10, lambda: pair.step().finished_recving)
        assert ended == {"x-bbbbbbbb"}
        assert torch.equal(pair.decode.blocks([7]), pair.prefill.blocks([3]))
        assert torch.equal(pair.decode.blocks(others), before)
        assert len(pair.decode.worker.nixl_wrapper.grants) == 0
        until("the prefill instance is done", 10, lambda: pair.prefill.results().finished_sending)
    finally:
        pair.close()


def test_a_push_that_does_not_come_in_time_fails_and_cannot_come_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = PushPair(monkeypatch, timeout=0.2)
    try:
        pair.register()
        assert until("the request fails", 10, lambda: pair.step().failed_recving) == {"x-bbbbbbbb"}
        assert pair.decode.worker.get_block_ids_with_load_errors() == {7}
        assert len(pair.decode.worker.nixl_wrapper.grants) == 0
        before = pair.decode.blocks([7])
        pair.finish()

        def refused() -> Any:
            pair.prefill.results()
            stats = pair.prefill.connector.get_kv_connector_stats()
            return stats is not None and stats.data["num_failed_transfers"]

        until("the prefill instance has tried", 10, refused)
        assert torch.equal(pair.decode.blocks([7]), before)
    finally:
        pair.close()
