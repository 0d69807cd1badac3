"""vLLM's NIXL connector, imported without NIXL: to be imported from here, before anything else imports it."""

from __future__ import annotations

from typing import Any

from vllm.distributed import nixl_utils

from kvferry.vllm.standin import swapped

__all__ = ["PUSH_REG_NOTIF_PREFIX", "base_worker", "connector", "stats"]


# The first import of vLLM's worker loads NIXL, to have two names of it. Whoever uses vLLM's own connector in
# this process has it loaded then.
def _agent(*arguments: Any) -> Any:
    if nixl_utils.NixlWrapper is None:
        raise RuntimeError("NIXL is not available")
    return nixl_utils.NixlWrapper(*arguments)


def _agent_config(**settings: Any) -> Any:
    return nixl_utils.nixl_agent_config and nixl_utils.nixl_agent_config(**settings)


with swapped(nixl_utils, NixlWrapper=_agent, nixl_agent_config=_agent_config):
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker, connector, stats
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import PUSH_REG_NOTIF_PREFIX
