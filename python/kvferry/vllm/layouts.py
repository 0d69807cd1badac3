"""A decode worker's table of layers, sent to each prefill worker once and named by an id from then on. It has
an entry for every layer, and vLLM sends all of it with every request.

A prefill worker that does not know an id (it has started again, or has seen many others since) says so, and
is told the whole table.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import MooncakeXferMetadata

if TYPE_CHECKING:
    from kvferry.vllm.pulls import Pull

TABLE = (
    "kv_caches_base_addr",
    "block_lens",
    "kv_block_lens",
    "registered_layer_names",
    "registered_layer_indices",
    "registered_group_indices",
    "registered_shared_group_ids",
    "registered_row_offsets",
)
"""What of a pull is the same for all of a worker's pulls."""
KNOWN = 256
"""How many decode workers' tables a prefill worker keeps."""
UNKNOWN = "unknown table of layers: "
"""How the answer begins to a pull that names a table which is not known (any more)."""

current: ContextVar[Pull | None] = ContextVar("current", default=None)
"""The pull that this task asks for."""


class PullEncoder:
    """Stands in for vLLM's encoder at a decode worker: names the grant and the table of each pull behind its
    host, ``HOST#INCARNATION.GRANT.TABLE``, and leaves out a table that the prefill worker has."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: Any) -> bytes:
        """As msgspec's."""
        pull = current.get()
        if pull is not None and pull.grant is not None and isinstance(message, MooncakeXferMetadata):
            table = self._encoder.encode([getattr(message, name) for name in TABLE])
            name = hashlib.blake2b(table, digest_size=8).hexdigest()
            host = f"{message.remote_hostname}{pull.mark}.{name}"
            without: dict[str, Any] = {field: [] for field in TABLE} if pull.is_short else {}
            message = msgspec.structs.replace(message, remote_hostname=host, **without)
        encoded: bytes = self._encoder.encode(message)
        return encoded


class PullDecoder:
    """Stands in for vLLM's decoder of pulls at a prefill worker: puts back the tables that were left out."""

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(MooncakeXferMetadata)
        self._tables: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def decode(self, message: bytes) -> MooncakeXferMetadata:
        """As msgspec's. Raises where a table is named that is not known."""
        pull = self._decoder.decode(message)
        host, _, name = pull.remote_hostname.rpartition(".")
        if "#" not in host:  # vLLM's own, or one that asks for nothing
            return pull
        if pull.kv_caches_base_addr:
            self._tables[name] = {field: getattr(pull, field) for field in TABLE}
            while len(self._tables) > KNOWN:
                self._tables.popitem(last=False)
        elif name not in self._tables:
            raise LookupError(f"{UNKNOWN}{name}")
        self._tables.move_to_end(name)
        return msgspec.structs.replace(pull, remote_hostname=host, **self._tables[name])
