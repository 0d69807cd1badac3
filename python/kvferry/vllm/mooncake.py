"""`MooncakeConnector`: vLLM's own, over kvferry's engine. The prefill worker writes, as in-tree.

What is different, each by overriding a method of vLLM's:

- A decode worker grants the blocks of a request for the time of its pull, and revokes before it reports that
  the pull failed: a prefill worker that was stopped and wakes later cannot write into what is somebody else's
  by then.
- It notices within seconds that a prefill worker is gone, or that nobody says where it is, and asks the
  bootstrap server again for the one that came after.
- It fails every request that an answer does not name, where vLLM would wait for ever.
- A prefill worker frees the blocks of a failed transfer at once, not after 480 s; answers at once for
  requests that ended before they were sent; and does not trip over requests that it does not know.
- Registering with the bootstrap server is repeated for as long as the worker lives, and a restarted one gets
  its rank back.
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import OrderedDict
from typing import Any

import msgspec
import numpy as np
import torch
import zmq.asyncio
from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector as in_tree
from vllm.platforms import current_platform

import kvferry
from kvferry import bootstrap
from kvferry.compat.mooncake.granted import GrantedEngine, Session, Written, ranges
from kvferry.vllm.layouts import UNKNOWN, PullDecoder, PullEncoder, current
from kvferry.vllm.limits import check_address, check_in_host_memory, check_settings
from kvferry.vllm.metrics import TRANSFERS, UNREACHED, Changes, MooncakeMetrics, MooncakeStats
from kvferry.vllm.pulls import Pull, Watches
from kvferry.vllm.seal import SealedConnector
from kvferry.vllm.standin import affinity_kept, swapped

logger = logging.getLogger("vllm.kvferry")

LEASE_S = 15.0
"""For how long a bootstrap server remembers a prefill worker that says nothing."""
ASKING_S = 5.0
"""For how long a bootstrap server is asked that does not answer, where VLLM_MOONCAKE_CONNECTOR_TIMEOUT is not
set: vLLM would give up at once."""
REMEMBERED = 4096
"""How many transfers a prefill worker remembers that ended without being sent."""
LAYOUTS = 256
"""How many decode workers' layouts a prefill worker keeps aligned with its own."""
END_S = 10.0
"""How long tasks may take to end. They wait for writes that are under way on no thread of theirs."""
SENDER_TASKS = 256
"""How many pulls may wait for their prefill at once without keeping others from being sent."""

Status = in_tree.MooncakeXferResponseStatus


class BootstrapServer:
    """Stands in for vLLM's `MooncakeBootstrapServer`: gives a worker that starts again its rank back, answers
    once all ranks are there, and forgets the dead."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._server: bootstrap.Server | None = None

    def start(self) -> None:
        """Serves, from when this returns on. Raises where the port is taken."""
        if self._server is None:
            self._server = bootstrap.Server(f"{self.host}:{self.port}")
            self.port = self._server.port

    def shutdown(self) -> None:
        """Ends it. May be called again, and before it was started."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()


class Replies:
    """The socket by which one pull is answered. Notes what failed, and has the last answer name every
    request."""

    def __init__(self, socket: Any, requests: set[str]) -> None:
        self._socket = socket
        self._unnamed = set(requests)
        self._decoder = msgspec.msgpack.Decoder(in_tree.MooncakeXferResponse)
        self.failed: set[str] = set()

    async def send_multipart(self, frames: tuple[bytes, bytes]) -> None:
        identity, body = frames
        response = self._decoder.decode(body)
        if response.status == Status.ERROR:
            self.failed |= self._unnamed
        self._unnamed -= set(response.ok_reqs or ()) | set(response.err_reqs or ())
        if response.status == Status.FINISH and self._unnamed:
            response.err_reqs = [*(response.err_reqs or ()), *sorted(self._unnamed)]
            response.err_msg = response.err_msg or "the request ended before its blocks could be sent"
        self.failed |= set(response.err_reqs or ())
        await self._socket.send_multipart((identity, msgspec.msgpack.encode(response)))


class MooncakeWorker(in_tree.MooncakeConnectorWorker):
    """One rank's end: sends its blocks, and pulls others'."""

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        check_settings(vllm_config.kv_transfer_config.kv_connector_extra_config)
        check_address(in_tree.get_ip())
        self._registration: bootstrap.Registration | None = None
        names = {"TransferEngine": GrantedEngine, "MooncakeBootstrapServer": BootstrapServer}
        with (
            affinity_kept(),
            swapped(in_tree, MooncakeKVConnectorStats=MooncakeStats, **names),
            swapped(torch.accelerator, **_device_index()),
        ):
            super().__init__(vllm_config, engine_id, kv_cache_config)
        self.engine.on_write = self._note_written
        self.num_sender_tasks: int = max(self.num_sender_tasks, SENDER_TASKS)
        self.async_zmq_ctx = zmq.asyncio.Context()
        self._watches = Watches(self.async_zmq_ctx, self._forget_worker)
        self._incarnations: dict[str, int] = {}
        self._grants: dict[str, list[kvferry.Grant]] = {}
        self._expected: dict[int, int] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._encoder, self._xfer_meta_decoder = PullEncoder(), PullDecoder()
        # Prefill workers that have this one's table of layers.
        self._told: set[str] = set()
        self._changes = Changes()

    def shutdown(self) -> None:
        """Ends everything: pulls, sends, registrations, the engine. May be called again, and after a failed
        start."""
        if vars(self).get("_shut"):
            return
        self._shut = True
        if self._registration is not None:
            self._registration.release()
        if "_changes" in vars(self):  # else the constructor has failed
            # vLLM ends ZeroMQ's context under its tasks, which then spin: they end before it.
            for name in ("receiver_loop", "sender_loop"):
                if (loop := vars(self).get(name)) is not None and loop.is_running():
                    with contextlib.suppress(TimeoutError):
                        asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result(END_S)
            super().shutdown()
        if (engine := vars(self).get("engine")) is not None:
            engine.close()

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Registers the caches. Raises where one is not in host memory: there is no other yet."""
        check_in_host_memory(kv_caches)
        super().register_kv_caches(kv_caches)

    # --- statistics ---

    def _note_written(self, written: Written) -> None:
        outcome = "done" if written.done else "failed"
        self.xfer_stats.record(TRANSFERS, ["sent", written.transport or UNREACHED, outcome, written.bytes])

    def get_kv_connector_stats(self) -> Any:
        """Statistics since the last call; None where nothing changed."""
        self._changes.record(self.xfer_stats, self.engine.engine, self.engine.peers())
        return super().get_kv_connector_stats()

    # --- prefill ---

    async def register_worker_with_bootstrap(self) -> None:
        """Registers, and goes on doing so for as long as this worker lives."""
        host, port = in_tree.get_mooncake_bootstrap_addr(self.vllm_config)
        self._registration = bootstrap.Registration(
            in_tree.make_zmq_path("http", host, port),
            engine_id=self.engine_id,
            rank=(self.dp_rank, self.tp_rank, self.pp_rank),
            sizes=(None, self.tp_size, self.pp_size),
            address=in_tree.make_zmq_path("tcp", self.hostname, self.side_channel_port),
            incarnation=self.engine.engine.incarnation,
            lease=LEASE_S,
        )
        patience = in_tree._BOOTSTRAP_MAX_ATTEMPTS * envs.VLLM_MOONCAKE_CONNECTOR_TIMEOUT
        await asyncio.to_thread(self._registration.wait, float(patience))

    async def send_kv_to_decode(self, identity: bytes, sock: Any, meta: Any) -> None:
        """Answers a pull: sends what it asks for once that is there."""
        over = {request for request, (transfer, _) in meta.req_blocks.items() if transfer in self._ended}
        replies = Replies(sock, set(meta.req_blocks))
        if over:
            status = Status.FINISH if len(over) == len(meta.req_blocks) else Status.CONTINUE
            message = "the prefill of the request ended before its blocks could be sent"
            response = in_tree.MooncakeXferResponse(status=status, err_reqs=sorted(over), err_msg=message)
            await replies.send_multipart((identity, self._encoder.encode(response)))
            if status == Status.FINISH:
                return
            rest = {request: blocks for request, blocks in meta.req_blocks.items() if request not in over}
            meta = msgspec.structs.replace(meta, req_blocks=rest)
        asked = [self.reqs_need_send.get(transfer) for transfer, _ in meta.req_blocks.values()]
        before = [send.sending if send is not None else 0 for send in asked]
        try:
            await super().send_kv_to_decode(identity, replies, meta)
        except Exception:
            # What is raised is answered as an error. vLLM has counted the request as being sent, if it was
            # ready; what was counted before is another pull's.
            replies.failed |= meta.req_blocks.keys()
            if len(meta.req_blocks) == 1:
                ((transfer, _),) = meta.req_blocks.values()
                if (send := self.reqs_need_send.get(transfer)) is not None and send.sending > before[0]:
                    send.sending -= 1
            raise
        finally:
            for request in replies.failed & meta.req_blocks.keys():
                self._give_up(meta.req_blocks[request][0])

    def _give_up(self, transfer: str) -> None:
        """A decode worker was told that it will not get these blocks. They are freed once nothing is being
        sent."""
        self._remember_ended(transfer)
        send = self.reqs_need_send.get(transfer)
        if send is None:
            return
        if send.ready.is_set():
            send.expire_time = 0.0
        elif not send.p_req_id:
            # The request was never here: this was made for the decode worker to wait on.
            self.reqs_need_send.pop(transfer).ready.set()

    def _remember_ended(self, transfer: str) -> None:
        self._ended[transfer] = None
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def _prepare_transfer_regions(self, meta: Any) -> Any:
        """Aligns a decode worker's layout with this one's. What is kept of that is per worker, not per
        grant."""
        if len(self._prepared_transfer_regions) > LAYOUTS:
            self._prepared_transfer_regions.clear()
        host, _, _ = meta.remote_hostname.partition("#")
        return super()._prepare_transfer_regions(msgspec.structs.replace(meta, remote_hostname=host))

    async def record_send_reqs(self, metadata: Any) -> None:
        """Takes note of requests that were scheduled, finished, or will not be sent."""
        for request, (transfer, blocks) in list(metadata.reqs_to_send.items()):
            if transfer in self._ended:
                # Its decode worker was told that it failed: nobody comes for these blocks.
                del metadata.reqs_to_send[request]
                if (send := self.reqs_need_send.pop(transfer, None)) is not None:
                    send.ready.set()
                if blocks:
                    self.finished_sending_reqs.add(request)
            elif blocks and transfer not in self.reqs_need_send:
                unsent = in_tree.SendBlockMeta(request, transfer, [], asyncio.Event())
                self.reqs_need_send[transfer] = unsent
        dropped = {t: self.reqs_need_send[t] for t in metadata.reqs_not_processed if t in self.reqs_need_send}
        for transfer in metadata.reqs_not_processed:
            self._remember_ended(transfer)
        metadata.reqs_not_processed = set(dropped)
        await super().record_send_reqs(metadata)
        for send in dropped.values():
            # Whoever waits for it is answered, that it is no more.
            send.ready.set()

    # --- decode ---

    async def _connect_to_prefiller_bootstrap(self, remote_bootstrap_addr: str) -> None:
        """Learns who the prefill workers are, and which of their incarnations."""
        try:
            is_set = envs.is_set("VLLM_MOONCAKE_CONNECTOR_TIMEOUT")
            timeout = float(envs.VLLM_MOONCAKE_CONNECTOR_TIMEOUT) if is_set else ASKING_S
            listing = json.loads(await asyncio.to_thread(bootstrap.query, remote_bootstrap_addr, timeout))
            for entry in listing.values():
                self._learn(entry)
        except Exception as error:
            # Whatever it is: the address comes from a request, and others wait for this one's answer.
            logger.error("asking the bootstrap server %r failed: %s", remote_bootstrap_addr, error)
        finally:
            self._pending_bootstrap_queries.pop(remote_bootstrap_addr).set()

    def _learn(self, entry: dict[str, Any]) -> None:
        def ranks(table: dict[str, dict[str, Any]]) -> dict[int, dict[int, Any]]:
            return {int(tp): {int(pp): value for pp, value in stages.items()} for tp, stages in table.items()}

        engine, workers = entry["engine_id"], ranks(entry["worker_addr"])
        incarnations = ranks(entry.get("incarnation", {}))
        self._remote_agents[engine] = workers
        self._tp_size[engine] = len(workers)
        for tp, stages in workers.items():
            for pp, address in stages.items():
                self._incarnations[address] = incarnations.get(tp, {}).get(pp, 0)

    def _forget_worker(self, address: str) -> None:
        """A prefill worker is gone: its engine is asked for again when it is next needed."""
        self._incarnations.pop(address, None)
        self._told.discard(address)
        for engine, ranks in list(self._remote_agents.items()):
            if any(address in stages.values() for stages in ranks.values()):
                del self._remote_agents[engine]
                if engine != self.engine_id:
                    self._tp_size.pop(engine, None)

    async def receive_kv_from_single_worker(self, worker_addr: str, pull_metas: dict[str, Any]) -> None:
        """Pulls each request by itself: each has its own grant."""
        await asyncio.gather(*(self._pull(worker_addr, *pull) for pull in pull_metas.items()))

    async def _pull(self, worker: str, request: str, meta: Any) -> None:
        if meta.failed:
            return
        pull = Pull(request, meta)
        try:
            pull.grant = self._grant(worker, request, meta)
        except Exception as error:
            self._handle_failed_recv(pull, {request}, f"granting its blocks to {worker}: {error}")
            return
        try:
            await self._ask(worker, pull)
        except Exception as error:
            # Nobody else would say that it ended.
            self._handle_failed_recv(pull, pull.unanswered, f"pulling from {worker}: {error}")
        finally:
            self._revoke(request, pull.grant)

    async def _ask(self, worker: str, pull: Pull) -> None:
        if pull.grant is not None:
            pull.mark = Session.mark(self.engine.engine.incarnation, pull.grant.id)
            pull.is_short = worker in self._told
        current.set(pull)
        ended = self._watches.end_of(worker)
        talk = asyncio.create_task(self._talk(worker, pull))
        gone = asyncio.create_task(ended.wait())
        try:
            patience = envs.VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT
            await asyncio.wait({talk, gone}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if talk.done():
                talk.result()
            else:
                reason = f"{worker} is gone" if gone.done() else f"{worker} has not answered for {patience} s"
                self._handle_failed_recv(pull, pull.unanswered, reason)
        finally:
            talk.cancel()
            gone.cancel()

    async def _talk(self, worker: str, pull: Pull) -> None:
        was_short = pull.is_short
        await super().receive_kv_from_single_worker(worker, pull)
        if was_short and not pull.is_short:
            # It has not the table any more.
            await super().receive_kv_from_single_worker(worker, pull)
        if pull.grant is not None:
            self._told.add(worker)

    def _grant(self, worker: str, request: str, meta: Any) -> kvferry.Grant | None:
        """Lets a prefill worker write a request's blocks. None where there is nothing to write."""
        blocks = self._logical_to_kernel_block_ids(meta.local_block_ids)
        if not any(blocks):
            return None
        incarnation = self._incarnations.get(worker)
        if not incarnation:
            raise LookupError("it is gone, or runs vLLM's own MooncakeConnector: both instances need kvferry")
        addresses, lengths = [], []
        for base, stride, length, group, shared, row in zip(
            self.kv_caches_base_addr,
            self.block_len_per_layer,
            self.kv_block_len_per_layer,
            self.registered_group_indices,
            self.region_shared_groups,
            self.region_row_offsets,
            strict=True,
        ):
            ids = np.asarray(in_tree._block_ids_for_region(blocks, group, shared), dtype=np.uint64)
            # Of a packed row all is the block's own, and layers that lie side by side are written at once.
            start, span = (base - row, stride) if row >= 0 else (base, length)
            addresses.append(ids * np.uint64(stride) + np.uint64(start))
            lengths.append(np.full(len(ids), span, dtype=np.uint64))
        ttl = envs.VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT + 60.0
        blocks_of_layers = ranges(np.concatenate(addresses), np.concatenate(lengths))
        grant: kvferry.Grant = self.engine.grant(blocks_of_layers, incarnation, ttl)
        self._expected[grant.id] = blocks_of_layers.total_bytes()
        self._grants.setdefault(request, []).append(grant)
        return grant

    def _revoke(self, request: str, grant: kvferry.Grant | None) -> None:
        if grant is None:
            return
        grant.revoke()
        self._expected.pop(grant.id, None)
        if grant in (held := self._grants.get(request, [])):
            held.remove(grant)
        if not held:
            self._grants.pop(request, None)

    def _handle_failed_recv(self, pull_metas: dict[str, Any], req_ids: Any, reason: str) -> None:
        """Reports requests as failed, once nobody can write their blocks any more."""
        req_ids = set(req_ids)
        if isinstance(pull_metas, Pull) and pull_metas.is_short and reason.startswith(UNKNOWN):
            pull_metas.is_short = False
            return
        for request in req_ids:
            for grant in self._grants.pop(request, ()):
                self._expected.pop(grant.id, None)
                grant.revoke()
            meta = pull_metas.get(request)
            if meta is not None and not meta.failed and any(meta.local_block_ids):
                self.xfer_stats.record(TRANSFERS, ["received", UNREACHED, "failed", 0])
        if isinstance(pull_metas, Pull):
            pull_metas.unanswered -= req_ids
        super()._handle_failed_recv(pull_metas, req_ids, reason)

    def process_pulling_result(self, response: Any, pull_metas: Any) -> None:
        """Takes an answer. The last one ends every request of the pull: what it does not name has failed."""
        for grant, transport in self.engine.arrivals().items():
            if (size := self._expected.pop(grant, None)) is not None:
                self.xfer_stats.record(TRANSFERS, ["received", transport, "done", size])
        for request in response.ok_reqs or ():
            self._revoke(request, pull_metas.grant)
            pull_metas.unanswered.discard(request)
        super().process_pulling_result(response, pull_metas)
        if response.status == Status.FINISH and pull_metas.unanswered:
            self._handle_failed_recv(pull_metas, set(pull_metas.unanswered), "the answer does not name it")


async def _end_tasks() -> None:
    """Ends all other tasks of this loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _device_index() -> dict[str, Any]:
    """On a CPU there is no device to ask for, and vLLM asks."""
    return {"current_device_index": lambda: 0} if current_platform.is_cpu() else {}


class MooncakeConnector(SealedConnector, in_tree.MooncakeConnector):
    """vLLM's `MooncakeConnector` over kvferry."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        with swapped(in_tree, MooncakeConnectorWorker=MooncakeWorker):
            super().__init__(vllm_config, role, kv_cache_config)

    def shutdown(self) -> None:
        """Ends the worker's half."""
        if self.connector_worker is not None:
            self.connector_worker.shutdown()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """Statistics from what a worker sent."""
        return MooncakeStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], labels: dict[int, list[object]]
    ) -> Any:
        """The Prometheus metrics of this connector."""
        return MooncakeMetrics(vllm_config, metric_types, labelnames, labels)


class KvferryMooncakeConnector(MooncakeConnector):
    """`MooncakeConnector` by a name of ours: vLLM looks classes up by their names."""
