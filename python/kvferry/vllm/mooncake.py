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
import logging
from typing import Any

import msgspec
import torch
import zmq.asyncio
from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector as in_tree
from vllm.platforms import current_platform

from kvferry import bootstrap
from kvferry.compat._kept import Latest
from kvferry.compat.mooncake.bootstrap import MooncakeBootstrapServer
from kvferry.compat.mooncake.granted import GrantedEngine, spans_of
from kvferry.compat.mooncake.watch import Watches
from kvferry.metrics import Changes
from kvferry.vllm.layouts import UNKNOWN, Pull, PullCodec
from kvferry.vllm.limits import check_address, check_in_host_memory, check_settings
from kvferry.vllm.metrics import CountedConnector, CountedWorker, MooncakeMetrics, MooncakeStats
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


class MooncakeWorker(CountedWorker, in_tree.MooncakeConnectorWorker):
    """One rank's end: sends its blocks, and pulls others'."""

    stats_class = MooncakeStats
    _registration: bootstrap.Registration | None = None

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        check_settings(vllm_config.kv_transfer_config.kv_connector_extra_config)
        check_address(in_tree.get_ip())
        names = {"TransferEngine": GrantedEngine, "MooncakeBootstrapServer": MooncakeBootstrapServer}
        with (
            affinity_kept(),
            swapped(in_tree, **names),
            swapped(torch.accelerator, **_device_index()),
        ):
            super().__init__(vllm_config, engine_id, kv_cache_config)
        self.num_sender_tasks: int = max(self.num_sender_tasks, SENDER_TASKS)
        self.async_zmq_ctx = zmq.asyncio.Context()
        self._watches = Watches(self.async_zmq_ctx, self._forget_worker)
        self._incarnations: dict[str, int] = {}
        self._ended: Latest[str, None] = Latest(REMEMBERED)
        self._encoder = self._xfer_meta_decoder = PullCodec()
        # Prefill workers that have this one's table of layers.
        self._told: set[str] = set()
        self.counts = Changes(self.engine.engine)

    def shutdown(self) -> None:
        """Ends everything: pulls, sends, registrations, the engine. May be called again, and after a failed
        start."""
        if vars(self).get("_shut"):
            return
        self._shut = True
        if self._registration is not None:
            self._registration.release()
        if "_told" in vars(self):  # else the constructor has failed
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
        replies = Replies(sock, set(meta.req_blocks))
        transfers = [transfer for transfer, _ in meta.req_blocks.values()]
        asked = {transfer: self.reqs_need_send.get(transfer) for transfer in transfers}
        before = {transfer: send.sending for transfer, send in asked.items() if send is not None}
        try:
            if any(transfer in self._ended for transfer in transfers):
                # Decode workers of ours ask for one request at a time.
                over = in_tree.MooncakeXferResponse(status=Status.FINISH)
                await replies.send_multipart((identity, self._encoder.encode(over)))
            else:
                await super().send_kv_to_decode(identity, replies, meta)
        except Exception:
            # What is raised is answered as an error. vLLM has counted the request as being sent, if it was
            # ready; what was counted before is another pull's.
            replies.failed |= meta.req_blocks.keys()
            for transfer in transfers:
                send = self.reqs_need_send.get(transfer)
                if send is not None and send.sending > before.get(transfer, 0):
                    send.sending -= 1
            raise
        finally:
            for request in replies.failed & meta.req_blocks.keys():
                self._give_up(meta.req_blocks[request][0])

    def _give_up(self, transfer: str) -> None:
        """A decode worker was told that it will not get these blocks. They are freed once nothing is being
        sent."""
        self._ended[transfer] = None
        send = self.reqs_need_send.get(transfer)
        if send is None:
            return
        if send.ready.is_set():
            send.expire_time = 0.0
        elif not send.p_req_id:
            # The request was never here: this was made for the decode worker to wait on.
            self.reqs_need_send.pop(transfer).ready.set()

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
            self._ended[transfer] = None
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
            for engine in await asyncio.to_thread(bootstrap.listing, remote_bootstrap_addr, timeout):
                self._learn(engine)
        except Exception as error:
            # Whatever it is: the address comes from a request, and others wait for this one's answer.
            logger.error("asking the bootstrap server %r failed: %s", remote_bootstrap_addr, error)
        finally:
            self._pending_bootstrap_queries.pop(remote_bootstrap_addr).set()

    def _learn(self, engine: bootstrap.Listed) -> None:
        self._remote_agents[engine.engine_id] = engine.workers
        self._tp_size[engine.engine_id] = len(engine.workers)
        self._incarnations |= engine.incarnations

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
        Pull.current.set(pull)
        try:
            pull.mark = self._grant(worker, request, meta)
            pull.is_short = bool(pull.mark) and worker in self._told
            patience = envs.VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT
            await self._watches.during(worker, self._ask(worker, pull), patience)
        except Exception as error:
            # Nobody else would say that it ended.
            self._handle_failed_recv(pull, pull.unanswered, f"pulling from {worker}: {error}")

    async def _ask(self, worker: str, pull: Pull) -> None:
        was_short = pull.is_short
        await super().receive_kv_from_single_worker(worker, pull)
        if was_short and not pull.is_short:
            # It has not the table any more.
            await super().receive_kv_from_single_worker(worker, pull)
        if pull.mark:
            self._told.add(worker)

    def _grant(self, worker: str, request: str, meta: Any) -> str:
        """Lets a prefill worker write a request's blocks, and names the grant. Nothing where there is nothing
        to write."""
        ids = self._logical_to_kernel_block_ids(meta.local_block_ids)
        if not any(ids):
            return ""
        incarnation = self._incarnations.get(worker)
        if not incarnation:
            raise LookupError("it is gone, or runs vLLM's own MooncakeConnector: both instances need kvferry")
        regions = zip(
            self.kv_caches_base_addr,
            self.block_len_per_layer,
            self.kv_block_len_per_layer,
            self.registered_group_indices,
            self.region_shared_groups,
            self.region_row_offsets,
            strict=True,
        )
        # Of a packed row all is the block's own, and layers that lie side by side are written at once.
        views = (
            (
                *((base - row, stride, stride) if row >= 0 else (base, stride, length)),
                in_tree._block_ids_for_region(ids, *groups),
            )
            for base, stride, length, *groups, row in regions
        )
        ttl = envs.VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT + 60.0
        mark: str = self.engine.grant(request, spans_of(views), incarnation, ttl)
        return mark

    def _handle_failed_recv(self, pull_metas: dict[str, Any], req_ids: Any, reason: str) -> None:
        """Reports requests as failed, once nobody can write their blocks any more."""
        req_ids = set(req_ids)
        if isinstance(pull_metas, Pull) and pull_metas.is_short and reason.startswith(UNKNOWN):
            pull_metas.is_short = False
            return
        for request in req_ids:
            self.engine.revoke(request)
        if isinstance(pull_metas, Pull):
            pull_metas.unanswered -= req_ids
        super()._handle_failed_recv(pull_metas, req_ids, reason)

    def process_pulling_result(self, response: Any, pull_metas: Any) -> None:
        """Takes an answer. The last one ends every request of the pull: what it does not name has failed."""
        for request in response.ok_reqs or ():
            if pull_metas[request].pull_tasks_count <= 1:  # else other workers still write
                self.engine.revoke(request)
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


class MooncakeConnector(SealedConnector, CountedConnector, in_tree.MooncakeConnector):
    """vLLM's `MooncakeConnector` over kvferry."""

    stats_class = MooncakeStats
    metrics_class = MooncakeMetrics

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        with swapped(in_tree, MooncakeConnectorWorker=MooncakeWorker):
            super().__init__(vllm_config, role, kv_cache_config)

    def shutdown(self) -> None:
        """Ends the worker's half."""
        if self.connector_worker is not None:
            self.connector_worker.shutdown()


class KvferryMooncakeConnector(MooncakeConnector):
    """`MooncakeConnector` by a name of ours: vLLM looks classes up by their names."""
