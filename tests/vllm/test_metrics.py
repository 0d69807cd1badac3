"""Statistics and Prometheus metrics of both kinds of connector."""

from __future__ import annotations

from typing import Any

import prometheus_client
import pytest
from kvferry.vllm.metrics import KvferryMetrics, MooncakeStats
from kvferry.vllm.mooncake import MooncakeConnector
from kvferry.vllm.nixl_metrics import NixlStats
from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.stats import MooncakeKVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics
from workers import config

LABELS = ["model_name", "engine"]


def child(name: str) -> dict[str, Any]:
    return {"kv_connector": name, "kv_connector_module_path": "kvferry.vllm", "kv_role": "kv_both"}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> prometheus_client.CollectorRegistry:
    """A registry of this test's own."""
    monkeypatch.setattr(KvferryMetrics, "_made", {})
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
    stats.record("kvferry_transfers", ["sent", "tcp", "done", 4096])
    stats.record("kvferry_transfers", ["sent", "tcp", "failed", 4096])
    stats.record("kvferry_lanes", [3, 1])
    stats.record("kvferry_fallbacks", "10.0.0.1:7001")
    taken = stats.clone_and_reset()
    assert stats.is_empty() and not taken.is_empty()
    metrics.observe(
        MooncakeConnector.build_kv_connector_stats(taken.to_dict()).aggregate(MooncakeStats()).to_dict()
    )
    found = samples(registry)
    assert found["vllm:mooncake_xfer_time_seconds_sum"] == 0.5
    assert found["vllm:mooncake_num_failed_recvs_total"] == 1
    assert found["kvferry_transfers_total"] == 2
    assert found["kvferry_transferred_bytes_total"] == 4096
    assert found["kvferry_lanes"] == 4
    assert found["kvferry_fallbacks_total"] == 1


@pytest.mark.parametrize(
    ("ours", "theirs"), [(MooncakeStats, MooncakeKVConnectorStats), (NixlStats, NixlKVConnectorStats)]
)
def test_vllms_classes_read_our_statistics(ours: Any, theirs: Any) -> None:
    stats = ours()
    stats.record("kvferry_lanes", [1, 1])
    read = theirs(data=stats.to_dict())
    assert read.aggregate(theirs(data=stats.to_dict())).reduce()["Num successful transfers"] == 0


def test_vllms_metrics_take_our_statistics(registry: Any) -> None:
    def in_tree_metrics(*arguments: Any) -> Any:
        return NixlPromMetrics(*arguments)

    metrics = build(
        type("InTree", (), {"build_prom_metrics": staticmethod(in_tree_metrics)}),
        config("NixlConnector", "kv_both"),
        registry,
    )
    stats = NixlStats()
    stats.record("kvferry_lanes", [1, 1])
    stats.record_kv_expired_req()
    metrics.observe(stats.to_dict())
    assert samples(registry)["vllm:nixl_num_kv_expired_reqs_total"] == 1


def test_connectors_side_by_side_share_what_is_kvferrys(registry: Any) -> None:
    settings = config(
        "MultiConnector", "kv_both", connectors=[child("MooncakeConnector"), child("NixlConnector")]
    )
    metrics = build(MultiConnector, settings, registry)
    mooncake, nixl = MooncakeStats(), NixlStats()
    for stats in (mooncake, nixl):
        stats.record("kvferry_transfers", ["received", "local", "done", 10])
    metrics.observe({"MooncakeConnector": mooncake.to_dict(), "NixlConnector": nixl.to_dict()})
    assert samples(registry)["kvferry_transferred_bytes_total"] == 20
