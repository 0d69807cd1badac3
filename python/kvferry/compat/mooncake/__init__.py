"""Mooncake's transfer engine, over kvferry: `TransferEngine` and what it is given."""

from .engine import TransferEngine, TransferNotify, TransferOpcode

__all__ = ["TransferEngine", "TransferNotify", "TransferOpcode"]
