"""Libraries of the system that the published wheels need, where libraries.sh has put them."""

from __future__ import annotations

from pathlib import Path


def libraries(home: Path) -> str:
    """What `LD_LIBRARY_PATH` has to be for Mooncake, whose engine is linked with the RDMA libraries,
    whatever carries its transfers."""
    return ":".join(str(home / at / "x86_64-linux-gnu") for at in ("system/usr/lib", "system/lib"))
