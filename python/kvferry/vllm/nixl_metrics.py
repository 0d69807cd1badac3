"""Statistics and Prometheus metrics of the NIXL connectors."""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvferry.vllm.in_tree_nixl import stats as in_tree
from kvferry.vllm.metrics import FALLBACKS, LANES, TRANSFERS, WithKvferry, make_room


@dataclass
class NixlStats(in_tree.NixlKVConnectorStats):
    """In-tree statistics, and ours beside them. Recorded from the thread of the connector only, as
    in-tree."""

    def reset(self) -> None:
        super().reset()
        self.data.update({TRANSFERS: [], LANES: [], FALLBACKS: []})

    def record(self, key: str, event: Any) -> None:
        """Notes an event of ours."""
        self.data[key].append(event)

    def is_empty(self) -> bool:
        return super().is_empty() and not any(self.data.get(key) for key in (TRANSFERS, LANES, FALLBACKS))

    def aggregate(self, other: Any) -> NixlStats:
        make_room(self, other)
        super().aggregate(other)
        return self


class NixlMetrics(WithKvferry, in_tree.NixlPromMetrics):
    """`vllm:nixl_*` as in-tree, and `kvferry_*`."""

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        in_tree.NixlPromMetrics.observe(self, transfer_stats_data, engine_idx)
        super().observe(transfer_stats_data, engine_idx)
