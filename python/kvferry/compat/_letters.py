"""Notifications that say by which name their sender goes, and which interface they are for."""

from __future__ import annotations

import struct

_HEAD = struct.Struct("<cH")


def closed(kind: bytes, sender: str, message: bytes) -> bytes:
    """The bytes to send."""
    name = sender.encode()
    if len(name) > 0xFFFF:
        raise ValueError(f"a sender's name has {len(name)} bytes, at most 65535 are allowed")
    return _HEAD.pack(kind, len(name)) + name + message


def opened(kind: bytes, letter: bytes) -> tuple[str, bytes] | None:
    """The sender's name and the message, or None where it is for another interface."""
    if len(letter) < _HEAD.size:
        return None
    found, length = _HEAD.unpack_from(letter)
    if found != kind or len(letter) < _HEAD.size + length:
        return None
    name = letter[_HEAD.size : _HEAD.size + length]
    return name.decode(errors="replace"), letter[_HEAD.size + length :]
