"""Mooncake's transfer engine, over kvferry: `TransferEngine` and what it is given. `store` has that of its
store."""

from .engine import TransferEngine, TransferNotify, TransferOpcode

__all__ = ["TransferEngine", "TransferNotify", "TransferOpcode"]
