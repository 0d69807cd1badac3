"""What these connectors cannot do: said as a server starts, with what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROTOCOLS = ("rdma", "tcp", "local", "auto")
"""What may carry transfers of the Mooncake connector."""
DEVICES_OF_GPUS = ("device_names_by_gpu", "device_name_per_gpu")
"""Settings that name an RDMA device for each GPU."""


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises where the Mooncake connector is to use what it cannot."""
    for name in DEVICES_OF_GPUS:
        if named := settings.get(name):
            raise ValueError(
                f"{name} is {named!r}, and kvferry transfers host memory only, which belongs to no GPU: "
                "name the RDMA devices in device_name"
            )
    protocol = settings.get("mooncake_protocol", "rdma")
    if protocol not in PROTOCOLS:
        raise ValueError(
            f"mooncake_protocol is {protocol!r}, and kvferry has {', '.join(PROTOCOLS)}: "
            'set "mooncake_protocol" in kv_connector_extra_config to one of them'
        )


def check_address(host: str) -> None:
    """Raises where vLLM found no address of this host."""
    if host in ("0.0.0.0", "::", ""):
        raise ValueError("vLLM found no address of this host: set VLLM_HOST_IP to one that others reach")


def check_in_host_memory(caches: Mapping[str, Any]) -> None:
    """Raises where a cache is elsewhere: there is no other memory yet."""
    for layer, cache in caches.items():
        # Layers that keep a state have several tensors, in one place.
        device = (cache[0] if isinstance(cache, list) else cache).device
        if device.type != "cpu":
            raise ValueError(
                f"the KV cache of {layer} is on {device}, and kvferry transfers host memory only: "
                "run vLLM's own connector there"
            )
