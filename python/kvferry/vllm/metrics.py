"""Statistics that workers hand to vLLM, and the Prometheus metrics made of them.

The in-tree statistics keep their keys and types, so that an in-tree class can read ours: a `MultiConnector`
looks the class up by its name, which may find the in-tree one. What kvferry's engines have counted comes
beside them, under a key of its own: what has changed since the last time.
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.stats import MooncakeKVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import metrics as in_tree_store
from vllm.v1.metrics.utils import create_metric_per_engine

from kvferry.metrics import Changes, Prometheus

logger = logging.getLogger("vllm.kvferry")

KEY = "kvferry"
"""Key of what has changed: of each interval one entry with a list of `[name, *labels, change]`."""

_ENTRY = {"duration_seconds": 0.0, "num_keys": 0, "num_bytes": 0, "num_failed_keys": 0, "status": "ok"}
"""What an entry has beside that: the store connector's own class takes each for an operation."""


class StatsBeside:
    """Our statistics beside a connector's own. To be named before vLLM's class among the bases."""

    data: dict[str, list[Any]]

    def reset(self) -> None:
        super().reset()  # type: ignore[misc]
        self.data[KEY] = []

    def count(self, changes: list[Any]) -> None:
        """What an engine has counted, as `Changes.since` has it."""
        self.data[KEY].append({**_ENTRY, "changes": changes})

    def is_empty(self) -> bool:
        return not any(self.data.values())

    def aggregate(self, other: Any) -> Any:
        for key in other.data:
            self.data.setdefault(key, [])
        return super().aggregate(other)  # type: ignore[misc]

    def reduce(self) -> dict[str, Any]:
        reduced: dict[str, Any] = super().reduce()  # type: ignore[misc]
        return {name: value for name, value in reduced.items() if not name.startswith(KEY)}


class MooncakeStats(StatsBeside, MooncakeKVConnectorStats):
    """Statistics of the Mooncake connector."""


class StoreStats(StatsBeside, in_tree_store.MooncakeStoreConnectorStats):
    """Statistics of the store connector."""


class CountedWorker:
    """A worker with an engine of ours. To be named before vLLM's worker among the bases."""

    stats_class: ClassVar[Any]
    counts: Changes
    """What its engine counts: set once there is an engine."""

    def get_kv_connector_stats(self) -> Any:
        """Statistics since the last call; None where nothing changed."""
        stats = self.stats_class()
        if (theirs := super().get_kv_connector_stats()) is not None:  # type: ignore[misc]
            stats.aggregate(theirs)
        if changes := self.counts.since():
            stats.count(changes)
            if any(name == "kvferry_fallbacks" for name, *_ in changes):
                logger.warning("not by the best transport: %s", self.counts.engine.fallbacks())
        return None if stats.is_empty() else stats


class CountedConnector:
    """A connector with such workers. To be named before vLLM's connector among the bases."""

    stats_class: ClassVar[Any]
    metrics_class: ClassVar[Any]

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """Statistics from what a worker sent."""
        return cls.stats_class(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *settings: Any) -> Any:
        """The Prometheus metrics of this connector."""
        return cls.metrics_class(*settings)


_shown: dict[tuple[Any, ...], Prometheus] = {}
"""The metrics of this process, by the classes that made them: one of each, however many connectors it has."""
_showing = threading.Lock()


class WithKvferry:
    """Adds `kvferry_*` to a connector's own metrics. To be named before vLLM's class among the bases."""

    per_engine_labelvalues: dict[int, list[object]]
    _counter_cls: Any
    _gauge_cls: Any

    def __init__(
        self, vllm_config: Any, types: Any, labelnames: list[str], labels: dict[int, list[object]]
    ) -> None:
        super().__init__(vllm_config, types, labelnames, labels)  # type: ignore[call-arg]
        kinds = (self._counter_cls, self._gauge_cls)  # Ray has others
        with _showing:
            if (key := (*kinds, *labelnames)) not in _shown:
                counter, gauge = kinds
                _shown[key] = Prometheus(counter, partial(gauge, multiprocess_mode="mostrecent"), labelnames)
        self._kvferry = _shown[key]
        for values in labels.values():
            self._kvferry.start(values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        theirs = {key: events for key, events in transfer_stats_data.items() if key != KEY}
        super().observe(theirs, engine_idx)  # type: ignore[misc]
        for entry in transfer_stats_data.get(KEY, ()):
            self._kvferry.take(entry["changes"], self.per_engine_labelvalues[engine_idx])


class StoreMetrics(WithKvferry, in_tree_store.MooncakeStorePromMetrics):
    """`vllm:mooncake_store_*` as in-tree, and `kvferry_*`."""


SECONDS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0]
BYTES = [2.0 ** (10 + i) for i in range(1, 25, 2)]
RUNS = [10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000]


class ProposedMooncakeMetrics(KVConnectorPromMetrics):
    """`vllm:mooncake_*` by the names that vllm#50374 proposes. Prefill workers observe transfers, decode
    workers failures, as the in-tree statistics do."""

    COUNTERS: ClassVar[dict[str, str]] = {
        "num_failed_transfers": "KV cache transfers that failed. Counted by the prefill instance.",
        "num_failed_recvs": "Requests whose KV cache did not arrive. Counted by the decode instance.",
        "num_kv_expired_reqs": "Requests whose blocks nobody took. Counted by the prefill instance.",
    }
    HISTOGRAMS: ClassVar[dict[str, tuple[str, str, list[Any]]]] = {
        "transfer_duration": ("xfer_time_seconds", "Duration of KV cache transfers.", SECONDS),
        "bytes_transferred": ("bytes_transferred", "Bytes of each KV cache transfer.", BYTES),
        "num_descriptors": ("num_descriptors", "Contiguous runs in each KV cache transfer.", RUNS),
    }

    def __init__(self, vllm_config: Any, types: Any, labelnames: list[str], labels: Any) -> None:
        super().__init__(vllm_config, types, labelnames, labels)

        def each(kind: Any, name: str, help: str, **more: Any) -> Any:
            metric = kind(name=f"vllm:mooncake_{name}", documentation=help, labelnames=labelnames, **more)
            return create_metric_per_engine(metric, labels)

        self._told = {key: each(self._counter_cls, key, help) for key, help in self.COUNTERS.items()}
        for key, (name, help, buckets) in self.HISTOGRAMS.items():
            self._told[key] = each(self._histogram_cls, name, help, buckets=buckets)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for key, metric in self._told.items():
            one = metric[engine_idx]
            for value in transfer_stats_data[key]:
                (one.observe if key in self.HISTOGRAMS else one.inc)(value)


class MooncakeMetrics(WithKvferry, ProposedMooncakeMetrics):
    """The Mooncake connector's, and `kvferry_*`."""
