"""As `kvferry.compat.mooncake.engine`."""

from kvferry.compat.mooncake.engine import Read, TransferEngine, TransferNotify, TransferOpcode, Write

__all__ = ["Read", "TransferEngine", "TransferNotify", "TransferOpcode", "Write"]
