"""`NixlConnector`, `NixlPullConnector`, `NixlPushConnector`: vLLM's own, over kvferry's engine.

What is different, each by overriding a method of vLLM's:

- NIXL and UCX are not loaded, and the thread that builds a worker is not pinned to a core.
- A prefill instance says until when it keeps a request's blocks; a decode instance fails a read that ended
  later, where vLLM would use what it read, whatever that was by then.
- Where a push does not come in time, the decode instance fails the request, once nobody can write its blocks
  any more. vLLM would wait for ever.
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any, ClassVar

import msgspec

from kvferry.compat import nixl as ours
from kvferry.compat.nixl.granted import GrantedAgent
from kvferry.metrics import Changes
from kvferry.vllm.in_tree_nixl import PUSH_REG_NOTIF_PREFIX, base_worker, stats
from kvferry.vllm.in_tree_nixl import connector as in_tree
from kvferry.vllm.metrics import CountedConnector, CountedWorker, StatsBeside, WithKvferry
from kvferry.vllm.seal import SealedConnector
from kvferry.vllm.standin import affinity_kept, swapped

logger = logging.getLogger("vllm.kvferry")

CLOCKS_S = 0.1
"""By how much the clocks of two instances may be told apart wrongly: a network's round trip."""


class NixlStats(StatsBeside, stats.NixlKVConnectorStats):
    """Statistics of the NIXL connectors."""


class NixlMetrics(WithKvferry, stats.NixlPromMetrics):
    """`vllm:nixl_*` as in-tree, and `kvferry_*`."""


class _Worker(CountedWorker):
    """What both kinds of worker have of ours. To be named before vLLM's worker among the bases."""

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        names = {"NixlWrapper": self._agent_class, "nixl_agent_config": ours.nixl_agent_config}
        with affinity_kept(), swapped(base_worker, **names):
            super().__init__(vllm_config, engine_id, kv_cache_config)  # type: ignore[call-arg]
        self.counts = Changes(self.nixl_wrapper.engine)

    nixl_wrapper: Any
    stats_class = NixlStats
    _agent_class: ClassVar[type[ours.nixl_agent]] = ours.nixl_agent


class NixlPullWorker(_Worker, in_tree.NixlPullConnectorWorker):
    """One rank's end of a pull."""

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        # Of each request at each engine: when its renewals began, and until when they keep its blocks.
        self._renewed: dict[tuple[str, str], tuple[float, float]] = {}
        super().__init__(vllm_config, engine_id, kv_cache_config)

    def _send_heartbeats(self, metadata: Any) -> None:
        """Renews leases of prefill instances, and remembers until when that is good."""
        now = time.perf_counter()
        super()._send_heartbeats(metadata)
        for engine, info in metadata.heartbeat_by_engine.items():
            for request in info.req_ids if engine in self._remote_agents else ():
                began, until = self._renewed.get((engine, request), (now, now))
                self._renewed[engine, request] = (began if now <= until else now, now + self._lease_extension)
        if metadata.heartbeat_by_engine:
            self._renewed = {key: span for key, span in self._renewed.items() if span[1] > now}

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> tuple[set[str], set[str]]:
        """Takes reads that have ended. One has failed that ended when its source may have been in other
        use."""
        # One without transfers has read nothing, as where all of it was cached.
        reading = {request for request, handles in transfers.items() if handles}
        done, failed = super()._pop_done_transfers(transfers)
        read = (done - failed) & reading if transfers is self._recving_transfers else set()
        late = {request for request in read if self._is_late(request)}
        for _ in late:
            self.xfer_stats.record_kv_expired_req()
        return done, failed | late

    def _is_late(self, request: str) -> bool:
        meta = self._recving_metadata.get(request)
        if meta is None or meta.remote is None or meta.remote.blocks_expiry_time is None:
            return False
        remote = meta.remote
        if (offset := self._engine_clock_offset.get(remote.engine_id)) is None:
            # The engine was forgotten meanwhile: there is no telling when that was.
            return True
        kept_until = remote.blocks_expiry_time - offset - CLOCKS_S
        began, until = self._renewed.pop((remote.engine_id, remote.request_id), (kept_until, kept_until))
        # A renewal that came when the time was over has kept nothing.
        return bool(time.perf_counter() >= (max(kept_until, until) if began <= kept_until else kept_until))


class NixlPullScheduler(in_tree.NixlPullConnectorScheduler):
    """The scheduler's half of a pull."""

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """Tells the decode instance until when the blocks are kept, unless it renews that."""
        kept, params = super().request_finished(request, block_ids)
        # With readback, vLLM takes this for the time of a lease that nobody renews.
        if kept and params and not self.is_bidirectional_kv_xfer_enabled:
            params["remote_blocks_expiry_time"] = self._reqs_need_send[request.request_id]
        return kept, params


class Registration(msgspec.Struct):
    """What of a decode rank's registration is looked at here."""

    request_id: str
    decode_tp_size: int
    kvferry_grants: dict[str, int]


class NixlPushWorker(_Worker, in_tree.NixlPushConnectorWorker):
    """One rank's end of a push."""

    _agent_class = GrantedAgent

    def start_load_kv(self, metadata: Any) -> None:
        """Takes a step's work; requests whose push did not come are failed, once it cannot come any more."""
        super().start_load_kv(metadata)
        for request in metadata.kvferry_overdue:
            if request in self._recving_metadata:
                self.nixl_wrapper.grants.revoke(request)
                self._failed_recv_reqs.put(request)

    def _do_send_reg_notif(self, req_id: str, reg_data: dict[str, Any]) -> None:
        """Asks the prefill ranks for a push, and lets each write the request's blocks."""
        with self._handshake_lock:
            agents = list((self._remote_agents.get(reg_data["remote_engine_id"]) or {}).values())
        try:
            # What is overdue is revoked; this is for a scheduler that is gone.
            setting = self.kv_transfer_config.get_from_extra_config
            ttl = 2 * float(setting("push_registration_timeout", setting("decoder_kv_blocks_ttl", 480)))
            prepared = self.src_xfer_handles_by_block_size[self.block_size]
            which = partial(self._descriptors_of, req_id)
            grants = self.nixl_wrapper.grant(req_id, prepared, which, agents, ttl)
        except Exception as error:
            # On the thread that writes, and nobody else would say that it failed.
            self.nixl_wrapper.grants.revoke(req_id)
            self._log_failure(failure_type="push_grant_failed", req_id=req_id, error=error)
            self._failed_recv_reqs.put(req_id)
            return
        if grants or not agents:  # without a grant, the request is no more
            super()._do_send_reg_notif(req_id, {**reg_data, "kvferry_grants": grants})

    def _descriptors_of(self, request: str) -> Any:
        """Where a request's blocks are in the prepared list; None where it is no more, or has none."""
        meta = self._recving_metadata.get(request)
        if meta is None or not any(meta.local_physical_block_ids):
            return None
        return self._compute_desc_ids(
            block_ids=meta.local_physical_block_ids,
            dst_num_blocks=self.dst_num_blocks[self.engine_id],
            block_size_ratio=None,
            physical_blocks_per_logical=self._physical_blocks_per_logical_kv_block,
            region_num_blocks=self.dst_region_num_blocks.get(self.engine_id),
            region_group_ids=self.region_group_ids or None,
            uses_region_group_mapping=self._uses_region_group_mapping,
        )

    def _handle_push_reg_notif(self, notif: bytes) -> None:
        """Takes a decode rank's registration. A push writes to every rank that this one is the source of, so
        it begins when each of them has granted its blocks."""
        message = notif.removeprefix(PUSH_REG_NOTIF_PREFIX)
        try:
            new = msgspec.msgpack.decode(message, type=Registration)
        except msgspec.MsgspecError as error:
            logger.warning("a registration that is none of kvferry's is ignored: %s", error)
            return
        ranks = max(1, new.decode_tp_size // self.world_size)
        grants = self.nixl_wrapper.gather(new.request_id, new.kvferry_grants, ranks)
        if grants is not None:
            complete = {**msgspec.msgpack.decode(message), "kvferry_grants": grants}
            super()._handle_push_reg_notif(PUSH_REG_NOTIF_PREFIX + msgspec.msgpack.encode(complete))

    def _do_start_push_kv(self, request_id: str, local_block_ids: Any, registration_data: Any) -> None:
        """Writes a request's blocks, by leave of the decode rank that asks for them."""
        with self.nixl_wrapper.by_leave(registration_data["kvferry_grants"]):
            super()._do_start_push_kv(request_id, local_block_ids, registration_data)

    def get_transfer_results(self) -> Any:
        """What has ended. Nobody can write any more what is reported as received, well or badly."""
        results = super().get_transfer_results()
        for request in results.finished_recving:
            self.nixl_wrapper.grants.revoke(request)
        return results


class NixlPushScheduler(in_tree.NixlPushConnectorScheduler):
    """The scheduler's half of a push."""

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """A step's work for the workers, with the requests whose push is overdue."""
        now = time.perf_counter()
        deadlines = self._push_registration_deadlines.items()
        overdue = [request for request, deadline in deadlines if deadline <= now]
        metadata = super().build_connector_meta(scheduler_output)
        metadata.kvferry_overdue = overdue
        return metadata


class _Connector(SealedConnector, CountedConnector):
    """What all connectors have of ours. To be named before vLLM's connector among the bases."""

    stats_class = NixlStats
    metrics_class = NixlMetrics

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        with swapped(
            in_tree,
            NixlPullConnectorWorker=NixlPullWorker,
            NixlPullConnectorScheduler=NixlPullScheduler,
            NixlPushConnectorWorker=NixlPushWorker,
            NixlPushConnectorScheduler=NixlPushScheduler,
        ):
            super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]


class NixlPullConnector(_Connector, in_tree.NixlPullConnector):
    """vLLM's `NixlPullConnector` over kvferry: decode instances read."""


class NixlPushConnector(_Connector, in_tree.NixlPushConnector):
    """vLLM's `NixlPushConnector` over kvferry: prefill instances write."""


class NixlConnector(NixlPullConnector):
    """`NixlPullConnector` by its older name. vLLM looks classes up by their names."""


class KvferryNixlPullConnector(NixlPullConnector):
    """`NixlPullConnector` by a name of ours."""


class KvferryNixlPushConnector(NixlPushConnector):
    """`NixlPushConnector` by a name of ours."""
