"""Statistics that workers hand to vLLM, and the Prometheus metrics made of them.

The in-tree statistics keep their keys and types, so that an in-tree class can read ours: a `MultiConnector`
looks the class up by its name, which may find the in-tree one. Keys of ours come beside them, lists like
theirs, one entry an event.
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

import logging
import threading
from collections import Counter as Counts
from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.stats import MooncakeKVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

if TYPE_CHECKING:
    from kvferry import Engine, Peer

logger = logging.getLogger("vllm.kvferry")

TRANSPORTS = ("local", "tcp")
"""What may carry a transfer."""
UNREACHED = "none"
"""What carried a transfer whose peer was not reached, or not any more."""
DIRECTIONS = ("sent", "received")
"""Whether blocks of this process were sent, or blocks have arrived here."""
OUTCOMES = ("done", "failed")

TRANSFERS = "kvferry_transfers"
"""Key of events ``[direction, transport, outcome, bytes]``."""
LANES = "kvferry_lanes"
"""Key of events ``[opened, accepted]``: how many connections there are now."""
FALLBACKS = "kvferry_fallbacks"
"""Key of events ``address``: a peer is reached by TCP, though the local transport was allowed."""
KEYS = (TRANSFERS, LANES, FALLBACKS)


class StatsBeside:
    """Our statistics beside a connector's own. To be named before vLLM's class among the bases."""

    data: dict[str, list[Any]]

    def reset(self) -> None:
        super().reset()  # type: ignore[misc]
        self.data.update({key: [] for key in KEYS})

    def record(self, key: str, event: Any) -> None:
        """Notes an event of ours. vLLM's class has a lock where its connector records on several threads."""
        with vars(self).get("_lock") or nullcontext():
            self.data[key].append(event)

    def is_empty(self) -> bool:
        return super().is_empty() and not any(self.data.get(key) for key in KEYS)  # type: ignore[misc]

    def aggregate(self, other: Any) -> Any:
        for key in other.data:
            self.data.setdefault(key, [])
        return super().aggregate(other)  # type: ignore[misc]


class MooncakeStats(StatsBeside, MooncakeKVConnectorStats):
    """Statistics of the Mooncake connector."""

    def clone_and_reset(self) -> MooncakeStats:
        return MooncakeStats(data=dict(super().clone_and_reset().data))


class Changes:
    """An engine's lanes and fallbacks, recorded when they change."""

    def __init__(self) -> None:
        self._lanes = [0, 0]
        self._fallbacks: set[str] = set()

    def record(self, stats: Any, engine: Engine, peers: Iterable[Peer]) -> None:
        """Looks at them now."""
        status = engine.status()
        lanes = [status["lanes_opened"], status["lanes_accepted"]]
        if lanes != self._lanes:
            stats.record(LANES, lanes)
            self._lanes = lanes
        for peer in peers:
            if peer.address not in self._fallbacks and (reason := peer.not_local) is not None:
                logger.warning("transfers to %s go over TCP: %s", peer.address, reason)
                stats.record(FALLBACKS, peer.address)
                self._fallbacks.add(peer.address)


class KvferryMetrics:
    """`kvferry_*`: what carried transfers, over how many lanes, and where another transport than wanted did.

    The same for every connector, so a process has one of each, however many connectors it has.
    """

    _made: ClassVar[dict[tuple[Any, ...], KvferryMetrics]] = {}
    _making = threading.Lock()

    @classmethod
    def of(cls, owner: Any, labelnames: list[str]) -> KvferryMetrics:
        """The metrics of this process, made by the metric classes of `owner` (which Ray wraps)."""
        key = (owner._counter_cls, owner._gauge_cls, tuple(labelnames))
        with cls._making:
            if key not in cls._made:
                cls._made[key] = cls(owner, labelnames)
            return cls._made[key]

    def __init__(self, owner: Any, labelnames: list[str]) -> None:
        self._transfers = owner._counter_cls(
            name="kvferry_transfers",
            documentation="Transfers of KV blocks, by direction, transport and outcome. Both ends count.",
            labelnames=[*labelnames, "direction", "transport", "outcome"],
        )
        self._bytes = owner._counter_cls(
            name="kvferry_transferred_bytes",
            documentation="Bytes of KV blocks that were transferred, by direction and transport.",
            labelnames=[*labelnames, "direction", "transport"],
        )
        self._lanes = owner._gauge_cls(
            name="kvferry_lanes",
            documentation="Connections to peers that are open, by who opened them.",
            labelnames=[*labelnames, "opened_by"],
            multiprocess_mode="mostrecent",
        )
        self._fallbacks = owner._counter_cls(
            name="kvferry_fallbacks",
            documentation="Peers that are reached by another transport than the best that was allowed.",
            labelnames=labelnames,
        )

    def start(self, labels: list[Any]) -> None:
        """Has everything of an engine be there, at zero."""
        for direction in DIRECTIONS:
            for transport in TRANSPORTS:
                self._bytes.labels(*labels, direction, transport)
                for outcome in OUTCOMES:
                    self._transfers.labels(*labels, direction, transport, outcome)
            self._transfers.labels(*labels, direction, UNREACHED, "failed")
        for opened_by in ("us", "peer"):
            self._lanes.labels(*labels, opened_by).set(0)
        self._fallbacks.labels(*labels)

    def observe(self, data: dict[str, Any], labels: list[Any]) -> None:
        """Counts the events of one interval. Statistics of another class have none of ours."""
        for direction, transport, outcome, count in data.get(TRANSFERS, ()):
            self._transfers.labels(*labels, direction, transport, outcome).inc()
            if outcome == "done":
                self._bytes.labels(*labels, direction, transport).inc(count)
        for opened, accepted in data.get(LANES, ())[-1:]:
            self._lanes.labels(*labels, "us").set(opened)
            self._lanes.labels(*labels, "peer").set(accepted)
        if fallbacks := Counts(data.get(FALLBACKS, ())):
            self._fallbacks.labels(*labels).inc(fallbacks.total())


class WithKvferry(KVConnectorPromMetrics):
    """Adds `kvferry_*` to a connector's own metrics."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._kvferry = KvferryMetrics.of(self, labelnames)
        for labels in per_engine_labelvalues.values():
            self._kvferry.start(labels)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        self._kvferry.observe(transfer_stats_data, self.per_engine_labelvalues[engine_idx])


class MooncakeMetrics(WithKvferry):
    """`vllm:mooncake_*` by the names that vllm#50374 proposes, and `kvferry_*`.

    Prefill workers observe transfers, decode workers failures, as the in-tree statistics do.
    """

    HISTOGRAMS = (
        (
            "transfer_duration",
            "xfer_time_seconds",
            "Duration of KV cache transfers over Mooncake's interface.",
            [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0],
        ),
        (
            "bytes_transferred",
            "bytes_transferred",
            "Bytes of each KV cache transfer.",
            [2 ** (10 + i) for i in range(1, 25, 2)],
        ),
        (
            "num_descriptors",
            "num_descriptors",
            "Contiguous runs in each KV cache transfer.",
            [10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000],
        ),
    )
    COUNTERS = (
        ("num_failed_transfers", "KV cache transfers that failed. Counted by the prefill instance."),
        ("num_failed_recvs", "Requests whose KV cache did not arrive. Counted by the decode instance."),
        ("num_kv_expired_reqs", "Requests whose blocks nobody took. Counted by the prefill instance."),
    )

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._histograms = {
            key: create_metric_per_engine(
                self._histogram_cls(
                    name=f"vllm:mooncake_{name}", documentation=text, buckets=buckets, labelnames=labelnames
                ),
                per_engine_labelvalues,
            )
            for key, name, text, buckets in self.HISTOGRAMS
        }
        self._counters = {
            key: create_metric_per_engine(
                self._counter_cls(name=f"vllm:mooncake_{key}", documentation=text, labelnames=labelnames),
                per_engine_labelvalues,
            )
            for key, text in self.COUNTERS
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        super().observe(transfer_stats_data, engine_idx)
        for key, histogram in self._histograms.items():
            for value in transfer_stats_data[key]:
                histogram[engine_idx].observe(value)
        for key, counter in self._counters.items():
            for value in transfer_stats_data[key]:
                counter[engine_idx].inc(value)
