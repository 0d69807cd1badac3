"""Statistics and Prometheus metrics of both kinds of connector."""

from __future__ import annotations

from typing import Any

import prometheus_client
import pytest
from kvferry.vllm import metrics as ours
from kvferry.vllm.metrics import KEY, MooncakeStats, StoreStats
from kvferry.vllm.mooncake import MooncakeConnector
from kvferry.vllm.nixl import NixlStats
from kvferry.vllm.store import MooncakeStoreConnector
from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.stats import MooncakeKVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.metrics import MooncakeStoreConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics
from workers import config

LABELS = ["model_name", "engine"]


def child(name: str) -> dict[str, Any]:
    return {"kv_connector": name, "kv_connector_module_path": "kvferry.vllm", "kv_role": "kv_both"}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> prometheus_client.CollectorRegistry:
    """A registry of this test's own."""
    monkeypatch.setattr(ours, "_shown", {})
    return prometheus_client.CollectorRegistry()


def build(connector: Any, settings: Any, registry: Any) -> Any:
    def of(kind: Any) -> Any:
        return type(
            kind.__name__, (), {"__new__": lambda cls, **settings: kind(registry=registry, **settings)}
        )

    types = {kind: of(kind) for kind in (Counter, Gauge, Histogram)}
    return connector.build_prom_metrics(settings, types, LABELS, {0: ["tiny", "0"]})


def samples(registry: prometheus_client.CollectorRegistry) -> dict[str, float]:
    """Of each name, the sum of its series."""
    sums: dict[str, float] = {}
    for family in registry.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def counted(stats: Any, *changes: list[Any]) -> Any:
    """Statistics beside which an engine has counted this."""
    stats.count(list(changes))
    return stats


def test_every_metric_of_mooncakes_connector_is_there_at_zero(registry: Any) -> None:
    build(MooncakeConnector, config("MooncakeConnector", "kv_both"), registry)
    found = samples(registry)
    for name in ("xfer_time_seconds", "bytes_transferred", "num_descriptors"):
        assert found[f"vllm:mooncake_{name}_count"] == 0
    for name in ("num_failed_transfers", "num_failed_recvs", "num_kv_expired_reqs"):
        assert found[f"vllm:mooncake_{name}_total"] == 0
    for name in ("transfers_total", "transferred_bytes_total", "lanes", "fallbacks_total"):
        assert found[f"kvferry_{name}"] == 0


def test_what_workers_record_is_counted(registry: Any) -> None:
    metrics = build(MooncakeConnector, config("MooncakeConnector", "kv_both"), registry)
    stats = MooncakeStats()
    assert stats.is_empty()
    stats.record_transfer(0.5, 4096, 7)
    stats.record_failed_recv()
    counted(
        stats,
        ["kvferry_transfers", "sent", "tcp", "done", 1],
        ["kvferry_transfers", "sent", "tcp", "failed", 1],
        ["kvferry_transferred_bytes", "sent", "tcp", 4096],
        ["kvferry_lanes", "us", 4],
        ["kvferry_lanes", "peer", 1],
        ["kvferry_fallbacks", 1],
    )
    # Of another rank, and later.
    other = counted(MooncakeStats(), ["kvferry_lanes", "us", 2])
    metrics.observe(MooncakeConnector.build_kv_connector_stats(stats.to_dict()).aggregate(other).to_dict())
    metrics.observe(counted(MooncakeStats(), ["kvferry_lanes", "us", -3]).to_dict())
    found = samples(registry)
    assert found["vllm:mooncake_xfer_time_seconds_sum"] == 0.5
    assert found["vllm:mooncake_num_failed_recvs_total"] == 1
    assert found["kvferry_transfers_total"] == 2
    assert found["kvferry_transferred_bytes_total"] == 4096
    assert found["kvferry_lanes"] == 4
    assert found["kvferry_fallbacks_total"] == 1


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (MooncakeStats, MooncakeKVConnectorStats),
        (NixlStats, NixlKVConnectorStats),
        (StoreStats, MooncakeStoreConnectorStats),
    ],
)
def test_vllms_classes_read_our_statistics(mine: Any, theirs: Any) -> None:
    stats = counted(mine(), ["kvferry_lanes", "us", 1])
    read = theirs(data=stats.to_dict())
    assert read.aggregate(theirs(data=stats.to_dict())).reduce().get("Num successful transfers", 0) == 0
    # In our own class's summary, for the log, there is nothing of ours.
    assert not any(name.startswith(KEY) for name in stats.reduce())


def test_vllms_metrics_take_our_statistics(registry: Any) -> None:
    def in_tree_metrics(*arguments: Any) -> Any:
        return NixlPromMetrics(*arguments)

    metrics = build(
        type("InTree", (), {"build_prom_metrics": staticmethod(in_tree_metrics)}),
        config("NixlConnector", "kv_both"),
        registry,
    )
    stats = NixlStats()
    counted(stats, ["kvferry_lanes", "us", 1])
    stats.record_kv_expired_req()
    metrics.observe(stats.to_dict())
    assert samples(registry)["vllm:nixl_num_kv_expired_reqs_total"] == 1


def test_connectors_side_by_side_share_what_is_kvferrys(registry: Any) -> None:
    names = ("MooncakeConnector", "NixlConnector", "MooncakeStoreConnector")
    settings = config("MultiConnector", "kv_both", connectors=[child(name) for name in names])
    metrics = build(MultiConnector, settings, registry)
    change = ["kvferry_transferred_bytes", "received", "local", 10]
    each = [counted(stats, change) for stats in (MooncakeStats(), NixlStats(), StoreStats())]
    metrics.observe({name: stats.to_dict() for name, stats in zip(names, each, strict=True)})
    assert samples(registry)["kvferry_transferred_bytes_total"] == 30
    # vLLM looks their classes up by name, and may find its own.
    assert MultiConnector.build_kv_connector_stats(
        {name: stats.to_dict() for name, stats in zip(names, each, strict=True)}
    ).reduce()


def test_a_store_connector_shows_what_its_operations_took_and_what_its_engine_counted(registry: Any) -> None:
    metrics = build(MooncakeStoreConnector, config("MooncakeStoreConnector", "kv_both"), registry)
    assert samples(registry)["kvferry_transfers_total"] == 0
    stats = counted(StoreStats(), ["kvferry_transfers", "sent", "tcp", "done", 2])
    stats.record_operation("save_put", 0.5, 7, num_bytes=10)
    read = MooncakeStoreConnector.build_kv_connector_stats(stats.to_dict())
    assert read.reduce()["save_put_total_keys"] == 7
    metrics.observe(read.to_dict())
    found = samples(registry)
    assert found["vllm:mooncake_store_operation_keys_total"] == 7
    assert found["kvferry_transfers_total"] == 2
