"""vLLM's prefill and decode connectors, and that of a pool, over kvferry's engine.

Each connector is vLLM's own, subclassed: its worker is given kvferry's engine where it asks for Mooncake's or
NIXL's, and what goes wrong there is put right by overriding. Three ways in, see docs/vllm.md:

- ``"kv_connector_module_path": "kvferry.vllm"`` beside an in-tree ``"kv_connector"``;
- the names ``KvferryMooncakeConnector``, ``KvferryMooncakeStoreConnector``, ``KvferryNixlPullConnector`` and
  ``KvferryNixlPushConnector``;
- ``KVFERRY_REPLACE=1``, and vLLM's configuration as it is.

============ ============================================================================
module       what stands there
============ ============================================================================
plugin       names in vLLM's registry, and what KVFERRY_REPLACE does to it
versions     which vLLM this was made for
standin      names of vLLM's modules that stand for ours while its constructors run
limits       what is refused, as a server starts
seal         metadata that only workers of ours take from schedulers of ours
mooncake     MooncakeConnector: both ends of a push
layouts      the tables of layers in pulls, sent once
pulls        what a decode worker knows of its open pulls, and of the prefill workers
store        MooncakeStoreConnector: blocks in a pool
nixl         NixlConnector, NixlPullConnector, NixlPushConnector
in_tree_nixl vLLM's NIXL connector, imported without NIXL
metrics      statistics and Prometheus metrics, and MooncakeConnector's
nixl_metrics those of the NIXL connectors
============ ============================================================================
"""

from __future__ import annotations

import importlib
from typing import Any

# Imported when they are asked for: vLLM looks one name up in this module, in processes that need no other.
_HOMES = {
    "MooncakeConnector": "kvferry.vllm.mooncake",
    "KvferryMooncakeConnector": "kvferry.vllm.mooncake",
    "MooncakeStoreConnector": "kvferry.vllm.store",
    "KvferryMooncakeStoreConnector": "kvferry.vllm.store",
    "NixlConnector": "kvferry.vllm.nixl",
    "NixlPullConnector": "kvferry.vllm.nixl",
    "NixlPushConnector": "kvferry.vllm.nixl",
    "KvferryNixlPullConnector": "kvferry.vllm.nixl",
    "KvferryNixlPushConnector": "kvferry.vllm.nixl",
    # With a module path at top level, this is where vLLM looks for it.
    "MultiConnector": "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"kvferry.vllm has no {name}: there are {', '.join(sorted(_HOMES))}")
    from kvferry.vllm import versions

    versions.check()
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return __all__
