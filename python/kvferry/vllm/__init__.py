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
plugin       names in vLLM's registry
versions     which vLLM this was made for
standin      names of vLLM's modules that stand for ours while its constructors run
limits       what is refused, as a server starts
seal         metadata that only workers of ours take from schedulers of ours
mooncake     MooncakeConnector: both ends of a push
layouts      pulls, and the tables of layers in them, sent once
store        MooncakeStoreConnector: blocks in a pool
nixl         NixlConnector, NixlPullConnector, NixlPushConnector
in_tree_nixl vLLM's NIXL connector, imported without NIXL
metrics      statistics and Prometheus metrics
============ ============================================================================
"""

from __future__ import annotations

import importlib
from typing import Any

# Imported when they are asked for: vLLM looks one name up in this module, in processes that need no other.
_MODULES = {
    "mooncake": ("MooncakeConnector", "KvferryMooncakeConnector"),
    "store": ("MooncakeStoreConnector", "KvferryMooncakeStoreConnector"),
    "nixl": (
        *("NixlConnector", "NixlPullConnector", "NixlPushConnector"),
        *("KvferryNixlPullConnector", "KvferryNixlPushConnector"),
    ),
}
CONNECTORS = {name: f"kvferry.vllm.{module}" for module, names in _MODULES.items() for name in names}
"""By their names: vLLM's, and ours."""
_HOMES = {
    **CONNECTORS,
    # With a module path at top level, this is where vLLM looks for it.
    "MultiConnector": "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector",
}

__all__ = ["CONNECTORS", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"kvferry.vllm has no {name}: there are {', '.join(sorted(_HOMES))}")
    from kvferry.vllm import versions

    versions.check()
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return __all__
