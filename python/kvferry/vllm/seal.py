"""Metadata that only workers of ours take, and only from schedulers of ours.

The two halves of a connector live in different processes, and each is looked up there: where one process
lacks an environment variable or a plug-in, half of it would be vLLM's own. They would understand each other
well enough to corrupt memory later, so they must not understand each other at all.
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

_CAUSE = (
    "set KVFERRY_REPLACE and VLLM_PLUGINS alike for every process of the server (Ray: "
    "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY=KVFERRY_REPLACE), or name kvferry.vllm as kv_connector_module_path"
)


@dataclass
class Sealed(KVConnectorMetadata):
    """What a scheduler of ours sends. vLLM's workers refuse it at the first step: it is none of theirs."""

    metadata: KVConnectorMetadata


class SealedConnector:
    """The part of a connector that seals and unseals. To be named before vLLM's connector among the bases."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return Sealed(super().build_connector_meta(scheduler_output))  # type: ignore[misc]

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        if not isinstance(connector_metadata, Sealed):
            raise RuntimeError(
                f"this worker runs kvferry's {type(self).__name__}, its scheduler vLLM's own: {_CAUSE}"
            )
        super().bind_connector_metadata(connector_metadata.metadata)  # type: ignore[misc]
