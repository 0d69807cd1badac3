"""What engines count, for programs that show it: `Changes` of an engine since it was looked at last, and
`Prometheus`, metrics that take them, from other processes too.

    changes, shown = Changes(engine), Prometheus(prometheus_client.Counter, prometheus_client.Gauge)
    shown.start()
    ...
    shown.take(changes.since())

What there is `kvferry.metric_families` lists; docs/vllm.md has it with explanations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ._native import Engine, metric_families

__all__ = ["Changes", "Prometheus"]


class Changes:
    """What has changed of what an engine counts."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._before: dict[tuple[str, ...], int] = {}

    def since(self) -> list[list[Any]]:
        """What has, since the last call or the engine's start: lists of a family's name, the values of its
        labels, and by how much it is more, or less."""
        before, self._before = self._before, self.engine.metrics()
        changes = ((series, now - before.get(series, 0)) for series, now in self._before.items())
        return [[*series, change] for series, change in changes if change]


class Prometheus:
    """Metrics of all that engines count, made by the classes of `prometheus_client`, or by others with the
    same calls. There can be one of each metric in a process."""

    def __init__(self, counter: Any, gauge: Any, labelnames: Sequence[str] = ()) -> None:
        self._metrics = {
            family.name: (gauge if family.kind == "gauge" else counter)(
                name=family.name, documentation=family.help, labelnames=[*labelnames, *family.labels]
            )
            for family in metric_families()
        }
        self._held: Counter[tuple[Any, ...]] = Counter()

    def start(self, labels: Sequence[Any] = ()) -> None:
        """Has everything of an engine be there, at zero: `labels` are the values for `labelnames`."""
        for family in metric_families():
            self.take(([family.name, *series, 0] for series in family.series), labels)

    def take(self, changes: Iterable[Sequence[Any]], labels: Sequence[Any] = ()) -> None:
        """Takes changes, as `Changes.since` has them."""
        for name, *series, change in changes:
            values = (*labels, *series)
            # Without labels a metric is its only series.
            metric = self._metrics[name].labels(*values) if values else self._metrics[name]
            if hasattr(metric, "set"):  # some gauges cannot add
                self._held[name, *values] += change
                metric.set(self._held[name, *values])
            else:
                metric.inc(change)
