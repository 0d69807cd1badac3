"""What engines count, and how programs show it."""

from __future__ import annotations

from typing import Any

import kvferry
import numpy as np
import pytest
from kvferry._native import Pairs
from kvferry.metrics import Changes, Prometheus

ADDRESS = "127.0.0.1:0"


class Metric:
    """A metric as `prometheus_client` has them, and each of its series."""

    made: dict[str, Metric]

    def __init__(self, name: str, documentation: str, labelnames: list[str]) -> None:
        assert documentation
        self.labelnames, self.values = labelnames, dict[tuple[Any, ...], float]()
        self.made[name] = self
        self.series: tuple[Any, ...] = ()

    def labels(self, *values: Any) -> Any:
        assert len(values) == len(self.labelnames)
        self.series = values
        self.values.setdefault(values, 0)
        return self


class Counter(Metric):
    def inc(self, change: float) -> None:
        assert change >= 0
        self.values[self.series] = self.values.get(self.series, 0) + change


class Gauge(Metric):
    def set(self, value: float) -> None:
        self.values[self.series] = value


def transfers(engine: kvferry.Engine) -> dict[tuple[str, ...], int]:
    """Those that there were."""
    counted = engine.metrics().items()
    return {
        tuple(labels): count for (name, *labels), count in counted if name == "kvferry_transfers" and count
    }


def test_each_end_counts_the_transfers_that_it_asked_for() -> None:
    memory = np.zeros(8192, np.uint8)
    with (
        kvferry.Engine(kvferry.Registry(), listen=ADDRESS, transport="tcp") as owner,
        kvferry.Engine(listen=ADDRESS, transport="tcp") as engine,
        kvferry.process_registry().register(memory) as ours,
        owner.registry.allocate(4096) as theirs,
    ):
        changes = Changes(engine)
        assert changes.since() == []
        theirs.layout(4096).publish("all")
        theirs.share("read_write")
        peer = engine.connect(owner.address)
        there = peer.layout("all").blocks([0])
        peer.write(ours.span(0, 4096), there, notify=b"x").wait()
        peer.read(there, ours.span(4096, 4096)).wait()
        peer.notify(b"no blocks").wait()
        changed = changes.since()
        for series in (
            ["kvferry_transfers", "sent", "tcp", "done", 1],
            ["kvferry_transfers", "received", "tcp", "done", 1],
            ["kvferry_transferred_bytes", "sent", "tcp", 4096],
            ["kvferry_transferred_bytes", "received", "tcp", 4096],
        ):
            assert series in changed
        assert sum(change for name, *_, change in changed if name == "kvferry_transfers") == 2
        theirs.unregister()
        with pytest.raises(kvferry.Error):
            peer.write(ours.span(0, 4096), there).wait()
        assert [series[-2:] for series in changes.since() if series[0] == "kvferry_transfers"] == [
            ["failed", 1]
        ]
        assert owner.metrics()["kvferry_transfers", "sent", "tcp", "done"] == 0


def test_a_transfer_to_somebody_who_is_not_there_is_counted_once() -> None:
    memory = np.zeros(4096, np.uint8)
    with (
        kvferry.Engine(listen=ADDRESS, transport="tcp", connect_timeout=1.0) as engine,
        kvferry.process_registry().register(memory) as ours,
    ):
        pairs = Pairs.of_addresses([ours.address], [4096], [4096])
        post = pairs.post(engine, engine.peer("127.0.0.1:1"), "read")
        with pytest.raises(kvferry.UnreachableError):
            post.wait(20)
        assert transfers(engine) == {("received", "none", "failed"): 1}


def test_what_a_program_knows_of_is_counted_as_it_says() -> None:
    with kvferry.Engine(listen=ADDRESS) as engine:
        engine.count("received", "tcp", 10)
        engine.count("received")
        assert transfers(engine) == {("received", "tcp", "done"): 1, ("received", "none", "failed"): 1}
        assert engine.metrics()["kvferry_transferred_bytes", "received", "tcp"] == 10
        with pytest.raises(ValueError, match="neither"):
            engine.count("up")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="no transport"):
            engine.count("sent", "pigeon", 1)


def test_a_peer_that_is_not_reached_by_the_best_transport_is_counted_and_named(tmp_path: Any) -> None:
    with (
        kvferry.Engine(kvferry.Registry(), listen=ADDRESS, transport="tcp") as other,
        kvferry.Engine(listen=ADDRESS, transport="auto", run_directory=tmp_path) as engine,
    ):
        engine.connect(other.address)
        assert engine.metrics()["kvferry_fallbacks",] == 1
        assert list(engine.fallbacks()) == [other.address]


def test_metrics_are_there_at_zero_and_take_changes_of_several_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: dict[str, Metric] = {}
    monkeypatch.setattr(Metric, "made", made, raising=False)
    shown = Prometheus(Counter, Gauge, ["engine"])
    shown.start(["0"])
    assert made.keys() == {family.name for family in kvferry.metric_families()}
    assert all(
        made[family.name].values.keys() == {("0", *series) for series in family.series}
        for family in kvferry.metric_families()
    )
    for change in (4, 2, -3):
        shown.take([["kvferry_lanes", "us", change], ["kvferry_fallbacks", 1]], ["0"])
    assert made["kvferry_lanes"].values["0", "us"] == 3
    assert made["kvferry_fallbacks"].values["0",] == 3
