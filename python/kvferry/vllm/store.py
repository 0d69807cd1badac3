"""`MooncakeStoreConnector`: vLLM's own, over a pool whose master is `kv-master`.

What is different, each by overriding a method of vLLM's:

- Mooncake is not needed, and not loaded where it is installed. What the pool's client cannot do ends the
  start, and says why; vLLM would log a number, or less.
- Each server's scheduler reaches its own worker: unless told otherwise, vLLM gives all servers of a host one
  socket.
- No CUDA event is recorded: a forward pass on a CPU has written the cache when it returns.
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import connector as in_tree
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.worker import MooncakeStoreWorker

from kvferry.compat.mooncake import store as ours
from kvferry.metrics import Changes
from kvferry.vllm.limits import check_in_host_memory
from kvferry.vllm.metrics import CountedConnector, CountedWorker, StoreMetrics, StoreStats
from kvferry.vllm.seal import SealedConnector
from kvferry.vllm.standin import swapped


class PoolStore(ours.MooncakeDistributedStore):
    """Our store, which raises what keeps a server from starting."""

    def setup(self, *settings: Any, **named: Any) -> int:
        """Joins the pool, or raises."""
        if code := super().setup(*settings, **named):
            raise RuntimeError(f"the pool was not joined ({code}): {self.last_error}")
        return 0

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Lets blocks be put from a cache, and got into it, or raises."""
        if code := super().register_buffer(buffer_ptr, size):
            raise RuntimeError(f"a cache of {size} bytes was not registered ({code}): {self.last_error}")
        return 0


class PastEvent:
    """Stands in for an event of CUDA's: what is recorded has happened."""

    def record(self) -> None:
        """Nothing is under way."""

    def synchronize(self) -> None:
        """Nothing is waited for."""


class StoreWorker(CountedWorker, MooncakeStoreWorker):
    """One rank's end: puts its blocks into the pool, and gets others'."""

    stats_class = StoreStats

    def __init__(self, vllm_config: Any, kv_cache_config: Any) -> None:
        module = SimpleNamespace(MooncakeDistributedStore=PoolStore, ReplicateConfig=ours.ReplicateConfig)
        with swapped(sys.modules, **{"mooncake.store": module}):
            super().__init__(vllm_config, kv_cache_config)
        self.counts = Changes(self.store.engine)

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Registers the caches. Raises where one is not in host memory: there is no other yet."""
        check_in_host_memory(kv_caches)
        super().register_kv_caches(kv_caches)

    def wait_for_save(self, metadata: Any) -> None:
        """Has what a step has computed be put."""
        with swapped(torch.cuda, Event=PastEvent):
            super().wait_for_save(metadata)

    def close(self) -> None:
        """Leaves the pool. May be called again, and after a failed start."""
        super().close()
        if (server := vars(self).get("lookup_server")) is not None:
            # Its name is this server's alone, so nobody would use it again.
            Path(server._ipc_path).unlink(missing_ok=True)


class MooncakeStoreConnector(SealedConnector, CountedConnector, in_tree.MooncakeStoreConnector):
    """vLLM's `MooncakeStoreConnector` over kvferry."""

    stats_class = StoreStats
    metrics_class = StoreMetrics

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        transfer = vllm_config.kv_transfer_config
        settings = transfer.kv_connector_extra_config
        if settings.get("custom_mem_pool"):
            raise ValueError(
                f"custom_mem_pool is {settings['custom_mem_pool']!r}, and kvferry has no allocator of "
                "GPU memory: leave it out"
            )
        name = hashlib.blake2b(transfer.engine_id.encode(), digest_size=8).hexdigest()
        settings.setdefault("lookup_rpc_port", name)
        with swapped(in_tree, MooncakeStoreWorker=StoreWorker):
            super().__init__(vllm_config, role, kv_cache_config)


class KvferryMooncakeStoreConnector(MooncakeStoreConnector):
    """`MooncakeStoreConnector` by a name of ours: vLLM looks classes up by their names."""
