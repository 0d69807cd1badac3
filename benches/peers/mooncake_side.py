"""A process with Mooncake's transfer engine, over TCP."""

from __future__ import annotations

import numpy as np
import side
from mooncake.engine import TransferEngine

# More in one call are refused by default; with MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER that many are not.
MOST_AT_ONCE = 4096


class Mooncake:
    def __init__(self, memory: side.Memory) -> None:
        self.engine = TransferEngine()
        self.base = memory.base
        self.block_bytes = 0
        for what, code in (
            ("initialize", self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")),
            ("register", self.engine.batch_register_memory([memory.base], [memory.bytes])),
        ):
            if code != 0:
                raise RuntimeError(f"{what}: {code}")

    def address(self) -> str:
        return f"127.0.0.1:{self.engine.get_rpc_port()}"

    def connect(self, other: str, base: int) -> None:
        self.other, self.other_base = other, base

    def prepare(self, blocks: int, block_bytes: int) -> None:
        self.block_bytes = block_bytes

    def transfer(self, op: str, local: np.ndarray, remote: np.ndarray) -> None:
        call = {
            "write": self.engine.batch_transfer_sync_write,
            "read": self.engine.batch_transfer_sync_read,
        }[op]
        ours = (local * self.block_bytes + self.base).tolist()
        theirs = (remote * self.block_bytes + self.other_base).tolist()
        for start in range(0, len(ours), MOST_AT_ONCE):
            part = slice(start, start + MOST_AT_ONCE)
            lengths = [self.block_bytes] * len(ours[part])
            code = call(self.other, ours[part], theirs[part], lengths)
            if code != 0:
                raise RuntimeError(f"{op}: {code}")


if __name__ == "__main__":
    memory = side.memory_as_told()
    side.serve_side(side.Side(Mooncake(memory), memory))
