"""What calls are given: which way, and what a target is told; and what the words of `initialize` mean."""

from __future__ import annotations

import enum
import logging
import os

logger = logging.getLogger(__name__)


class TransferOpcode(enum.IntEnum):
    """Which way a transfer goes."""

    Read = 0
    Write = 1


Read = TransferOpcode.Read
Write = TransferOpcode.Write


class TransferNotify:
    """What a target is told when a transfer is done: who says it, and what."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name = name
        self.msg = msg

    def __repr__(self) -> str:
        return f"TransferNotify(name={self.name!r}, msg={self.msg!r})"


def transport(protocol: str) -> str:
    """What carries transfers for a protocol: that one and no other."""
    if protocol in ("tcp", "local", "rdma", "auto"):
        return protocol
    raise ValueError(f"kvferry has no protocol {protocol!r}: 'rdma', 'tcp', 'local' or 'auto'")


def rdma_devices(carrier: str, names: str) -> str | None:
    """The adapters that were named, where what carries transfers uses any."""
    if names and carrier not in ("rdma", "auto"):
        logger.info("device_name %r is for RDMA: %s does without", names, carrier)
        return None
    return names or None


def check_metadata_server(server: str) -> None:
    """Engines tell each other: there is no server."""
    if server != "P2PHANDSHAKE":
        raise ValueError(
            f"metadata server {server!r}: kvferry's engines tell each other, "
            "so only 'P2PHANDSHAKE' is understood"
        )


def advertised(name: str) -> str:
    """What to advertise of HOST, HOST:PORT, an IPv6 address or [IPV6]:PORT. A port is not taken: any free
    one is bound, and `get_rpc_port` says which."""
    if name.startswith("["):
        host = name[1:].partition("]")[0]
    else:
        host = name if name.count(":") > 1 else name.partition(":")[0]
    return f"[{host}]:0" if ":" in host else f"{host}:0"


def listening() -> str | None:
    """Where to listen, where the variable says so."""
    address = os.environ.get("MC_TCP_BIND_ADDRESS")
    return f"{address}:0" if address else None


def deadline() -> float | None:
    """How long a transfer may take, in seconds: as the variable says, else as the engine sees fit."""
    value = os.environ.get("MC_TRANSFER_TIMEOUT")
    return max(5.0, float(value)) if value else None
