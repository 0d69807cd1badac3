"""What agents tell each other of themselves: name, address, incarnation, and what of their memory is meant.

Which memory an agent has registered is not in it: engines tell each other, whenever that changes.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass

from ..._native import Descriptors
from ._errors import nixlMismatchError

_MAGIC = b"KVFNIXL1"
_NIXL = b"nixlSerDes|"


@dataclass(frozen=True)
class Metadata:
    """What one agent says of itself."""

    name: str
    address: str
    incarnation: int
    #: Whether it introduces an agent that is not known yet.
    introduces: bool
    #: The ranges that are meant; None for all that the agent registers.
    scope: Descriptors | None

    def encode(self) -> bytes:
        """Its bytes."""
        scope = None if self.scope is None else base64.b64encode(self.scope.to_bytes()).decode()
        fields = {
            "name": self.name,
            "address": self.address,
            "incarnation": f"{self.incarnation:016x}",
            "introduces": self.introduces,
            "scope": scope,
        }
        return _MAGIC + json.dumps(fields).encode()


def decode(blob: bytes) -> Metadata:
    """What such bytes say."""
    if blob.startswith(_NIXL):
        raise nixlMismatchError(
            "this is metadata of NIXL's own agent, and this agent is kvferry's: both ends have to use "
            "kvferry.compat.nixl (or both NIXL)"
        )
    if not blob.startswith(_MAGIC):
        raise nixlMismatchError("this is no metadata of an agent")
    try:
        fields = json.loads(blob[len(_MAGIC) :])
        scope = fields["scope"]
        return Metadata(
            name=str(fields["name"]),
            address=str(fields["address"]),
            incarnation=int(fields["incarnation"], 16),
            introduces=bool(fields["introduces"]),
            scope=None if scope is None else Descriptors.from_bytes(base64.b64decode(scope, validate=True)),
        )
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise nixlMismatchError(f"this agent's metadata is damaged: {error}") from error
