"""The worker halves of connectors in one process, with real engines, sockets and cache memory: prefill and
decode instances without their models."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from servers import HOME, HOST, free_port
from vllm.config import KVTransferConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor

LAYERS = ["model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"]
BLOCKS, HEADS, TOKENS, WIDTH = 16, 2, 32, 64
PAGE = HEADS * TOKENS * WIDTH * 4

_names = itertools.count()


def one_rank() -> None:
    """vLLM's process groups, of one process."""
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.init_distributed_environment(1, 0, f"tcp://{HOST}:{free_port()}", 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1)


def config(connector: str, role: str, engine_id: str = "", **extra: Any) -> VllmConfig:
    """A server's configuration, as its command line would give it."""
    transfer = KVTransferConfig(
        kv_connector=connector,
        kv_connector_module_path="kvferry.vllm",
        kv_role=role,
        engine_id=engine_id or f"engine-{next(_names)}",
        kv_connector_extra_config=extra,
    )
    arguments = EngineArgs(
        model=str(HOME / "models/full"),
        dtype="float32",
        block_size=TOKENS,
        enforce_eager=True,
        kv_transfer_config=transfer,
    )
    settings = arguments.create_engine_config()
    settings.cache_config.kv_cache_layout = "LBHNC"  # which an engine core settles
    return settings


def cache_config() -> KVCacheConfig:
    """Two layers, one group."""
    spec = FullAttentionSpec(block_size=TOKENS, num_kv_heads=HEADS, head_size=WIDTH // 2, dtype=torch.float32)
    size = BLOCKS * PAGE
    tensor = KVCacheTensor(size=2 * size, layers=LAYERS, layer_stride=size, block_stride=PAGE)
    return KVCacheConfig(BLOCKS, [tensor], [KVCacheGroupSpec(LAYERS, spec)])


def caches(value: float) -> dict[str, torch.Tensor]:
    """A cache for each layer, in one allocation, every block of a value of its own."""
    whole = torch.empty((len(LAYERS), BLOCKS, HEADS, TOKENS, WIDTH), dtype=torch.float32)
    numbers = torch.arange(len(LAYERS) * BLOCKS, dtype=torch.float32)
    whole[:] = value + numbers.view(len(LAYERS), BLOCKS, 1, 1, 1) / 1000
    return {layer: whole[number] for number, layer in enumerate(LAYERS)}


def worker_half(connector: type, settings: VllmConfig) -> Any:
    """A connector as a worker has it."""
    with set_current_vllm_config(settings):
        one_rank()
        return connector(settings, KVConnectorRole.WORKER, cache_config())


class Instance:
    """A worker half, with its cache."""

    def __init__(self, connector: type, settings: VllmConfig, value: float) -> None:
        self.connector = worker_half(connector, settings)
        self.worker: Any = self.connector.connector_worker
        self.caches = caches(value)
        self.connector.register_kv_caches(self.caches)

    def blocks(self, ids: list[int]) -> torch.Tensor:
        """The contents of blocks in all layers."""
        return torch.stack([cache[ids] for cache in self.caches.values()]).clone()

    def results(self) -> Any:
        """What ended since the last call."""
        return self.connector.get_transfer_results(set())

    def close(self) -> None:
        self.connector.shutdown()
