"""A decode worker's table of layers, sent to each prefill worker once and named by an id from then on. It has
an entry for every layer, and vLLM sends all of it with every request.

A prefill worker that does not know an id (it has started again, or has seen many others since) says so, and
is told the whole table.
"""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from typing import Any

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import MooncakeXferMetadata

from kvferry.compat._kept import Latest

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


class Pull(dict[str, Any]):
    """The request of one pull, as vLLM takes it: a mapping with one entry. And what of it is still open."""

    current: ContextVar[Pull | None] = ContextVar("current", default=None)
    """The pull that this task asks for."""

    def __init__(self, request: str, meta: Any) -> None:
        super().__init__({request: meta})
        self.mark = ""
        """What names the grant behind this host; nothing where there is nothing to write."""
        self.is_short = False
        """Whether the prefill worker is asked without the table of layers, which it should have."""
        self.unanswered = {request}


class PullCodec:
    """Stands in for vLLM's encoder at a decode worker: names the grant and the table of each pull behind its
    host, ``HOST#INCARNATION.GRANT.TABLE``, and leaves out a table that the prefill worker has. Stands in for
    vLLM's decoder of pulls at a prefill worker: puts back the tables that were left out."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(MooncakeXferMetadata)
        self._tables: Latest[str, dict[str, Any]] = Latest(KNOWN)

    def encode(self, message: Any) -> bytes:
        """As msgspec's."""
        pull = Pull.current.get()
        if pull is not None and pull.mark and isinstance(message, MooncakeXferMetadata):
            table = self._encoder.encode([getattr(message, name) for name in TABLE])
            name = hashlib.blake2b(table, digest_size=8).hexdigest()
            without: dict[str, Any] = {field: [] for field in TABLE} if pull.is_short else {}
            host = f"{message.remote_hostname}{pull.mark}.{name}"
            message = msgspec.structs.replace(message, remote_hostname=host, **without)
        encoded: bytes = self._encoder.encode(message)
        return encoded

    def decode(self, message: bytes) -> MooncakeXferMetadata:
        """As msgspec's. Raises where a table is named that is not known."""
        pull = self._decoder.decode(message)
        host, _, name = pull.remote_hostname.rpartition(".")
        if "#" not in host:  # vLLM's own, or one that asks for nothing
            return pull
        if pull.kv_caches_base_addr:
            self._tables[name] = {field: getattr(pull, field) for field in TABLE}
        elif name not in self._tables:
            raise LookupError(f"{UNKNOWN}{name}")
        return msgspec.structs.replace(pull, remote_hostname=host, **self._tables.use(name))
