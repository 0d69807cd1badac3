"""Statistics and Prometheus metrics of the NIXL connectors."""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

from typing import Any

from kvferry.vllm.in_tree_nixl import stats as in_tree
from kvferry.vllm.metrics import StatsBeside, WithKvferry


class NixlStats(StatsBeside, in_tree.NixlKVConnectorStats):
    """Statistics of the NIXL connectors. Recorded from the thread of the connector only, as in-tree."""


class NixlMetrics(WithKvferry, in_tree.NixlPromMetrics):
    """`vllm:nixl_*` as in-tree, and `kvferry_*`."""

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        in_tree.NixlPromMetrics.observe(self, transfer_stats_data, engine_idx)
        super().observe(transfer_stats_data, engine_idx)
