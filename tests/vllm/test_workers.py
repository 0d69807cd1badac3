"""What kvferry's MooncakeConnector does otherwise than vLLM's, on its worker halves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import kvferry
import msgspec
import pytest
import torch
import zmq
from kvferry.bootstrap import Listed
from kvferry.compat.mooncake.bootstrap import MooncakeBootstrapServer
from kvferry.compat.mooncake.granted import GrantedEngine, Session
from kvferry.vllm import layouts
from kvferry.vllm.mooncake import MooncakeConnector
from servers import HOST, free_port, until
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector as in_tree
from workers import Instance, config


class Pair:
    """A prefill and a decode worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.port = free_port()
        monkeypatch.setenv("VLLM_HOST_IP", HOST)
        monkeypatch.setenv("VLLM_MOONCAKE_BOOTSTRAP_PORT", str(self.port))
        self.prefill = self.start_prefill(1.0)
        settings = config("MooncakeConnector", "kv_consumer", mooncake_protocol="tcp")
        self.decode = Instance(MooncakeConnector, settings, 2.0)

    def start_prefill(self, value: float) -> Instance:
        settings = config("MooncakeConnector", "kv_producer", "prefill", mooncake_protocol="tcp")
        self.prefill = Instance(MooncakeConnector, settings, value)
        return self.prefill

    def schedule(self, transfer: str) -> None:
        """The prefill instance has begun with a request."""
        self._send(transfer, [])

    def finish(self, transfer: str, blocks: list[int]) -> None:
        """The prefill instance has a request's blocks."""
        self._send(transfer, [blocks])

    def _send(self, transfer: str, blocks: list[list[int]]) -> None:
        metadata = in_tree.MooncakeConnectorMetadata()
        metadata.reqs_to_send[f"p-{transfer}"] = (transfer, blocks)
        self.prefill.worker.start_load_kv(metadata)

    def drop(self, transfer: str) -> None:
        """The prefill instance will not send a request: its client went, or it ended by its content."""
        metadata = in_tree.MooncakeConnectorMetadata()
        metadata.reqs_not_processed.add(transfer)
        self.prefill.worker.start_load_kv(metadata)

    def pull(
        self, transfer: str, blocks: list[int], engine: str = "prefill", bootstrap: str | None = None
    ) -> None:
        metadata = in_tree.MooncakeConnectorMetadata()
        parameters = {
            "transfer_id": transfer,
            "remote_engine_id": engine,
            "remote_bootstrap_addr": bootstrap or f"http://{HOST}:{self.port}",
        }
        metadata.add_new_req(f"d-{transfer}", [blocks], parameters)
        self.decode.worker.start_load_kv(metadata)

    def received(self, seconds: float = 10) -> set[str]:
        """The next requests that the decode worker reports as received, well or badly."""
        return set(until("a request was received", seconds, lambda: self.decode.results().finished_recving))

    def sent(self, seconds: float = 10) -> set[str]:
        return set(until("a request was sent", seconds, lambda: self.prefill.results().finished_sending))

    def failed_blocks(self) -> set[int]:
        return set(self.decode.worker.get_block_ids_with_load_errors())

    def close(self) -> None:
        self.decode.close()
        self.prefill.close()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    both = Pair(monkeypatch)
    yield both
    both.close()


def test_a_pull_brings_the_blocks_and_nothing_else(pair: Pair) -> None:
    before = pair.decode.blocks(list(range(16)))
    pair.schedule("x")
    pair.pull("x", [7, 2, 9])
    pair.finish("x", [3, 4, 5])
    assert pair.received() == {"d-x"}
    assert pair.sent() == {"p-x"}
    assert pair.failed_blocks() == set()
    assert torch.equal(pair.decode.blocks([7, 2, 9]), pair.prefill.blocks([3, 4, 5]))
    others = [block for block in range(16) if block not in (7, 2, 9)]
    assert torch.equal(pair.decode.blocks(others), before[:, others])
    assert kvferry.process_registry().grant_count == 0


def changes(stats: Any) -> list[Any]:
    """What engines have counted."""
    return [change for entry in stats.data["kvferry"] for change in entry["changes"]]


def transfers(stats: Any) -> list[Any]:
    """Of that, transfers."""
    return [series for name, *series in changes(stats) if name == "kvferry_transfers"]


def test_both_ends_count_a_transfer(pair: Pair) -> None:
    pair.schedule("x")
    pair.finish("x", [3])
    pair.pull("x", [7])
    pair.received()
    sent = pair.prefill.connector.get_kv_connector_stats()
    received = pair.decode.connector.get_kv_connector_stats()
    size = pair.decode.blocks([7]).nbytes
    assert transfers(sent) == [["sent", "tcp", "done", 1]]
    assert ["kvferry_transferred_bytes", "sent", "tcp", size] in changes(sent)
    assert transfers(received) == [["received", "tcp", "done", 1]]
    assert ["kvferry_transferred_bytes", "received", "tcp", size] in changes(received)
    assert sent.data["bytes_transferred"] == [size]
    # Once.
    later = pair.decode.connector.get_kv_connector_stats()
    assert later is None or transfers(later) == []


def test_a_request_whose_blocks_do_not_come_is_counted_once(pair: Pair) -> None:
    pair.drop("unknown")
    pair.pull("unknown", [1])
    pair.received()
    stats = pair.decode.connector.get_kv_connector_stats()
    assert transfers(stats) == [["received", "none", "failed", 1]]
    assert stats.data["num_failed_recvs"] == [1]


def tables(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What comes to the prefill worker of each table of layers, from now on."""
    decoder = pair.prefill.worker._xfer_meta_decoder
    came: list[list[int]] = []

    class Noting:
        def decode(self, message: bytes) -> Any:
            came.append(msgspec.msgpack.decode(message, type=in_tree.MooncakeXferMetadata).block_lens)
            return decoder.decode(message)

    monkeypatch.setattr(pair.prefill.worker, "_xfer_meta_decoder", Noting())
    return came


def moves(pair: Pair, transfer: str, source: int, target: int) -> None:
    """Has a block moved, and looks whether it was."""
    pair.schedule(transfer)
    pair.finish(transfer, [source])
    pair.pull(transfer, [target])
    assert pair.received() == {f"d-{transfer}"}
    assert pair.failed_blocks() == set()
    assert torch.equal(pair.decode.blocks([target]), pair.prefill.blocks([source]))


def test_the_table_of_layers_is_sent_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    came = tables(pair, monkeypatch)
    moves(pair, "x", 3, 7)
    moves(pair, "y", 4, 8)
    assert [bool(table) for table in came] == [True, False]


def test_a_table_of_layers_that_was_forgotten_is_sent_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = pair.prefill.worker._xfer_meta_decoder
    came = tables(pair, monkeypatch)
    moves(pair, "x", 3, 7)
    decoder._tables.clear()
    moves(pair, "y", 4, 8)
    moves(pair, "z", 5, 9)
    assert [bool(table) for table in came] == [True, False, True, False]


def test_tables_of_layers_are_not_kept_for_ever(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "KNOWN", 2)
    decoder, encoder = layouts.PullCodec(), msgspec.msgpack.Encoder()

    def decode(name: str, bases: list[int]) -> list[int]:
        pull = in_tree.MooncakeXferMetadata(f"{HOST}#1.2.{name}", 1, 1, 0, {}, bases, bases, bases)
        return list(decoder.decode(encoder.encode(pull)).block_lens)

    for number, name in enumerate(("one", "two", "three"), start=1):
        assert decode(name, [number]) == [number]
        assert decode(name, []) == [number]
    assert decode("two", []) == [2]
    with pytest.raises(LookupError, match=f"{layouts.UNKNOWN}one"):
        decode("one", [])


def test_a_prefill_worker_frees_the_blocks_of_a_failed_write_at_once(pair: Pair) -> None:
    pair.schedule("x")
    pair.finish("x", [3])
    pair.drop("unknown")
    pair.pull("unknown", [1])
    assert pair.received() == {"d-unknown"}
    assert pair.failed_blocks() == {1}
    (address,) = pair.decode.worker._incarnations
    # As if it had been started again since: what is granted is not granted to this one.
    pair.decode.worker._incarnations[address] += 1
    pair.pull("x", [7])
    assert pair.received() == {"d-x"}
    assert pair.failed_blocks() == {7}
    assert pair.sent() == {"p-x"}
    counted = transfers(pair.prefill.connector.get_kv_connector_stats())
    assert [(outcome, count) for _, _, outcome, count in counted] == [("failed", 1)]


def test_a_request_that_the_prefill_instance_drops_fails_at_once_where_it_is_waited_for(pair: Pair) -> None:
    pair.schedule("x")
    pair.pull("x", [7])
    until("the pull waits", 10, lambda: len(pair.decode.worker.engine.grants))
    pair.drop("x")
    assert pair.received() == {"d-x"}
    assert pair.failed_blocks() == {7}


def test_a_request_that_was_dropped_before_it_was_asked_for_fails_at_once(pair: Pair) -> None:
    pair.schedule("x")
    pair.drop("x")
    pair.pull("x", [7])
    assert pair.received() == {"d-x"}
    assert pair.failed_blocks() == {7}


def test_requests_that_the_prefill_worker_does_not_know_do_not_stop_it(pair: Pair) -> None:
    pair.drop("never seen")
    pair.finish("not scheduled", [3])
    pair.pull("not scheduled", [7])
    assert pair.received() == {"d-not scheduled"}
    assert pair.failed_blocks() == set()
    assert torch.equal(pair.decode.blocks([7]), pair.prefill.blocks([3]))


def test_blocks_that_nobody_will_come_for_are_freed_when_they_are_ready(pair: Pair) -> None:
    pair.schedule("x")
    pair.drop("x")
    pair.finish("x", [3])
    assert pair.sent() == {"p-x"}


def test_nobody_can_write_blocks_any_more_when_their_pull_is_reported_as_failed(pair: Pair) -> None:
    pair.schedule("x")
    pair.pull("x", [7])
    worker = pair.decode.worker
    grants = until("the pull waits", 10, lambda: worker.engine.grants.held_for("d-x"))
    session = f"{HOST}{Session.mark(worker.engine.engine.incarnation, grants[0].id)}:{worker.rpc_port}"
    source = pair.prefill.worker.kv_caches_base_addr[0] + 3 * pair.prefill.worker.block_len_per_layer[0]
    target = worker.kv_caches_base_addr[0] + 7 * worker.block_len_per_layer[0]

    def write() -> int:
        return int(pair.prefill.worker.engine.batch_transfer_sync_write(session, [source], [target], [64]))

    assert write() == 0
    pair.drop("x")
    assert pair.received() == {"d-x"}
    before = pair.decode.blocks([7])
    pair.prefill.caches[next(iter(pair.prefill.caches))][3] = 77.0
    assert write() == -1
    assert torch.equal(pair.decode.blocks([7]), before)


def test_a_prefill_worker_that_started_again_is_found(pair: Pair) -> None:
    pair.schedule("x")
    pair.finish("x", [3])
    pair.pull("x", [7])
    assert pair.received() == {"d-x"}
    pair.prefill.close()
    until(
        "the decode worker has forgotten it", 10, lambda: "prefill" not in pair.decode.worker._remote_agents
    )
    pair.start_prefill(5.0)
    pair.schedule("y")
    pair.finish("y", [4])
    pair.pull("y", [8])
    assert pair.received() == {"d-y"}
    assert pair.failed_blocks() == set()
    assert torch.equal(pair.decode.blocks([8]), pair.prefill.blocks([4]))


def test_a_pull_fails_soon_after_its_prefill_worker_has_gone(pair: Pair) -> None:
    pair.schedule("x")
    pair.pull("x", [7])
    until("the pull waits", 10, lambda: len(pair.decode.worker.engine.grants))
    pair.prefill.close()
    assert pair.received() == {"d-x"}
    assert pair.failed_blocks() == {7}


class FakePrefill:
    """A prefill worker's socket that answers each pull with the same bytes."""

    def __init__(self, answer: Callable[[], in_tree.MooncakeXferResponse]) -> None:
        context = zmq.Context.instance()
        self._socket = context.socket(zmq.ROUTER)
        self.address = f"tcp://{HOST}:{self._socket.bind_to_random_port(f'tcp://{HOST}')}"
        self._answer = answer
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        identity, _ = self._socket.recv_multipart()
        self._socket.send_multipart((identity, msgspec.msgpack.encode(self._answer())))


def test_a_request_that_the_last_answer_does_not_name_has_failed(pair: Pair) -> None:
    fake = FakePrefill(lambda: in_tree.MooncakeXferResponse(in_tree.MooncakeXferResponseStatus.FINISH))
    pair.decode.worker._learn(Listed("fake", {0: {0: fake.address}}, {fake.address: 1}))
    pair.pull("x", [7], engine="fake")
    assert pair.received() == {"d-x"}
    assert pair.failed_blocks() == {7}


def test_requests_fail_whatever_goes_wrong_with_what_they_name(pair: Pair) -> None:
    fake = FakePrefill(lambda: in_tree.MooncakeXferResponse(in_tree.MooncakeXferResponseStatus.FINISH))
    no_number: Any = "none"
    pair.decode.worker._learn(Listed("fake", {0: {0: fake.address}}, {fake.address: no_number}))
    pair.pull("x", [7], engine="fake")
    assert pair.received() == {"d-x"}
    # No address of a bootstrap server: nor may it keep the next from asking.
    for transfer in ("y", "z"):
        pair.pull(transfer, [8], engine="nowhere", bootstrap="http://\ud800")
        assert pair.received() == {f"d-{transfer}"}
    assert pair.decode.worker._pending_bootstrap_queries == {}


def test_a_request_whose_bootstrap_server_is_away_fails_in_seconds(pair: Pair) -> None:
    pair.pull("x", [7], engine="nowhere", bootstrap=f"http://{HOST}:{free_port()}")
    assert pair.received(seconds=8) == {"d-x"}
    assert pair.failed_blocks() == {7}


def test_a_cache_that_is_not_in_host_memory_is_refused(pair: Pair) -> None:
    with pytest.raises(ValueError, match=r"a layer is on meta.*host memory only"):
        pair.decode.worker.register_kv_caches({"a layer": torch.empty(1, device="meta")})


def test_a_prefill_worker_of_vllms_own_is_refused(pair: Pair) -> None:
    fake = FakePrefill(lambda: in_tree.MooncakeXferResponse(in_tree.MooncakeXferResponseStatus.FINISH))
    pair.decode.worker._learn(Listed("fake", {0: {0: fake.address}}))
    pair.pull("x", [7], engine="fake")
    assert pair.received() == {"d-x"}
    assert pair.failed_blocks() == {7}
    assert (
        pair.prefill.worker.engine.batch_transfer_sync_write(
            f"{HOST}:{pair.decode.worker.rpc_port}", [], [], []
        )
        == -1
    )


def test_vllms_modules_are_as_they_were(pair: Pair) -> None:
    assert in_tree.TransferEngine is not GrantedEngine
    assert in_tree.MooncakeBootstrapServer is not MooncakeBootstrapServer
    assert in_tree.MooncakeConnectorWorker.__module__ == in_tree.__name__


@pytest.mark.parametrize(
    ("settings", "host", "complaint"),
    [
        ({"mooncake_protocol": "nvlink"}, HOST, "mooncake_protocol is 'nvlink'"),
        ({"device_names_by_gpu": ["mlx5_0", "mlx5_1"]}, HOST, "device_names_by_gpu is"),
        ({"device_name_per_gpu": ["mlx5_0", "mlx5_1"]}, HOST, "device_name_per_gpu is"),
        ({"mooncake_protocol": "tcp"}, "0.0.0.0", "set VLLM_HOST_IP"),
    ],
)
def test_what_cannot_be_done_is_refused_at_start(
    settings: dict[str, Any], host: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_HOST_IP", host)
    with pytest.raises(ValueError, match=complaint):
        Instance(MooncakeConnector, config("MooncakeConnector", "kv_consumer", **settings), 0.0)


def test_a_device_that_is_named_is_the_one_that_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_HOST_IP", HOST)
    settings = {"mooncake_protocol": "rdma", "device_name": "mlx5_nowhere"}
    with pytest.raises(kvferry.Error, match=r"mlx5_nowhere|libibverbs"):
        Instance(MooncakeConnector, config("MooncakeConnector", "kv_consumer", **settings), 0.0)
