"""vLLM's own `MooncakeConnector`, where there is no accelerator: it asks which one is in use, and PyTorch
raises. Nothing else of it is changed."""

from __future__ import annotations

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import MooncakeConnector

__all__ = ["MooncakeConnector"]

torch.accelerator.current_device_index = lambda: 0
