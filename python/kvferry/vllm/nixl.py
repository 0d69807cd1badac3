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
import threading
import time
from collections import OrderedDict
from typing import Any

import msgspec

import kvferry
from kvferry.compat import nixl as ours
from kvferry.compat.nixl.granted import GrantedAgent
from kvferry.vllm.in_tree_nixl import PUSH_REG_NOTIF_PREFIX, base_worker
from kvferry.vllm.in_tree_nixl import connector as in_tree
from kvferry.vllm.metrics import TRANSFERS, UNREACHED, Changes
from kvferry.vllm.nixl_metrics import NixlMetrics, NixlStats
from kvferry.vllm.seal import SealedConnector
from kvferry.vllm.standin import affinity_kept, swapped

logger = logging.getLogger("vllm.kvferry")

REGISTERED = 4096
"""How many requests may wait at a prefill rank for decode ranks that have not registered them yet."""
CLOCKS_S = 0.1
"""By how much the clocks of two instances may be told apart wrongly: a network's round trip."""


class Agent(ours.nixl_agent):
    """Our agent, which says how transfers end."""

    def __init__(self, name: str, config: Any) -> None:
        super().__init__(name, config)
        self.stats = NixlStats()
        self.changes = Changes()

    def check_xfer_state(self, handle: Any) -> str:
        """Whether a transfer has ended; raises why it failed. vLLM asks until it has."""
        try:
            state = super().check_xfer_state(handle)
        except Exception:
            self._count(handle, "failed")
            raise
        if state == "DONE":
            self._count(handle, "done")
        return state

    def _count(self, handle: Any, outcome: str) -> None:
        # One that failed is asked for again while it cannot be released.
        if getattr(handle, "counted", False):
            return
        handle.counted = True
        transport = handle.peer.status()["transport"] or UNREACHED
        direction = "received" if handle.way == "read" else "sent"
        self.stats.record(TRANSFERS, [direction, transport, outcome, handle.bytes])

    def record_changes(self) -> None:
        """Looks at what carries transfers now."""
        self.changes.record(self.stats, self._engine, self._remotes.peers())


class _Worker:
    """What both kinds of worker have of ours. To be named before vLLM's worker among the bases."""

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        names = {"NixlWrapper": self._agent_class, "nixl_agent_config": ours.nixl_agent_config}
        with affinity_kept(), swapped(base_worker, NixlKVConnectorStats=NixlStats, **names):
            super().__init__(vllm_config, engine_id, kv_cache_config)  # type: ignore[call-arg]

    nixl_wrapper: Any
    _agent_class: type[Agent] = Agent

    def get_kv_connector_stats(self) -> Any:
        """Statistics since the last call; None where nothing changed."""
        agent = self.nixl_wrapper
        agent.record_changes()
        if not agent.stats.is_empty():
            self.xfer_stats.aggregate(agent.stats.clone_and_reset())  # type: ignore[attr-defined]
        return super().get_kv_connector_stats()  # type: ignore[misc]


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


class PushAgent(Agent, GrantedAgent):
    """An agent whose memory is written by leave only: each request's blocks are granted for its push."""


class Registration(msgspec.Struct):
    """What of a decode rank's registration is looked at here."""

    request_id: str
    decode_tp_size: int
    kvferry_grants: dict[str, int]


class NixlPushWorker(_Worker, in_tree.NixlPushConnectorWorker):
    """One rank's end of a push."""

    _agent_class = PushAgent

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        self._granted: dict[str, list[kvferry.Grant]] = {}
        self._granting = threading.Lock()
        # Of requests that some decode ranks have registered, and others have not yet. On the writing thread.
        self._leaves: OrderedDict[str, dict[str, int]] = OrderedDict()
        super().__init__(vllm_config, engine_id, kv_cache_config)

    def start_load_kv(self, metadata: Any) -> None:
        """Takes a step's work; requests whose push did not come are failed, once it cannot come any more."""
        super().start_load_kv(metadata)
        for request in metadata.kvferry_overdue:
            if request in self._recving_metadata:
                self._revoke(request)
                self._failed_recv_reqs.put(request)

    def _do_send_reg_notif(self, req_id: str, reg_data: dict[str, Any]) -> None:
        """Asks the prefill ranks for a push, and lets each write the request's blocks."""
        with self._handshake_lock:
            agents = list((self._remote_agents.get(reg_data["remote_engine_id"]) or {}).values())
        try:
            grants = self._grant(req_id, agents)
        except Exception as error:
            # On the thread that writes, and nobody else would say that it failed.
            self._revoke(req_id)
            self._log_failure(failure_type="push_grant_failed", req_id=req_id, error=error)
            self._failed_recv_reqs.put(req_id)
            return
        if grants or not agents:  # without a grant, the request is no more
            super()._do_send_reg_notif(req_id, {**reg_data, "kvferry_grants": grants})

    def _grant(self, request: str, agents: list[str]) -> dict[str, int]:
        with self._granting:
            meta = self._recving_metadata.get(request)
            if meta is None or not any(meta.local_physical_block_ids):
                return {}
            indices = self._compute_desc_ids(
                block_ids=meta.local_physical_block_ids,
                dst_num_blocks=self.dst_num_blocks[self.engine_id],
                block_size_ratio=None,
                physical_blocks_per_logical=self._physical_blocks_per_logical_kv_block,
                region_num_blocks=self.dst_region_num_blocks.get(self.engine_id),
                region_group_ids=self.region_group_ids or None,
                uses_region_group_mapping=self._uses_region_group_mapping,
            )
            prepared = self.src_xfer_handles_by_block_size[self.block_size]
            # What is overdue is revoked; this is for a scheduler that is gone.
            setting = self.kv_transfer_config.get_from_extra_config
            ttl = 2 * float(setting("push_registration_timeout", setting("decoder_kv_blocks_ttl", 480)))
            by_pair: dict[str, int] = {}
            held = self._granted.setdefault(request, [])
            for agent in agents:
                pair, grant = self.nixl_wrapper.grant(prepared, indices, agent, ttl)
                held.append(grant)
                by_pair[pair] = grant.id
            return by_pair

    def _revoke(self, request: str) -> None:
        with self._granting:
            for grant in self._granted.pop(request, ()):
                grant.revoke()

    def _handle_push_reg_notif(self, notif: bytes) -> None:
        """Takes a decode rank's registration. A push writes to every rank that this one is the source of, so
        it begins when each of them has granted its blocks."""
        message = notif.removeprefix(PUSH_REG_NOTIF_PREFIX)
        try:
            new = msgspec.msgpack.decode(message, type=Registration)
        except msgspec.MsgspecError as error:
            logger.warning("a registration that is none of kvferry's is ignored: %s", error)
            return
        grants = self._leaves.setdefault(new.request_id, {})
        grants.update(new.kvferry_grants)
        if self.nixl_wrapper.count_leaves(grants) < max(1, new.decode_tp_size // self.world_size):
            while len(self._leaves) > REGISTERED:
                self._leaves.popitem(last=False)
            return
        del self._leaves[new.request_id]
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
            self._revoke(request)
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


class _Connector(SealedConnector):
    """What all connectors have of ours. To be named before vLLM's connector among the bases."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        with swapped(
            in_tree,
            NixlPullConnectorWorker=NixlPullWorker,
            NixlPullConnectorScheduler=NixlPullScheduler,
            NixlPushConnectorWorker=NixlPushWorker,
            NixlPushConnectorScheduler=NixlPushScheduler,
        ):
            super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """Statistics from what a worker sent."""
        return NixlStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], labels: dict[int, list[object]]
    ) -> Any:
        """The Prometheus metrics of this connector."""
        return NixlMetrics(vllm_config, metric_types, labelnames, labels)


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
