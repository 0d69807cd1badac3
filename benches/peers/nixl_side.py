"""A process with NIXL's agent and its UCX backend. UCX_TLS chooses what carries transfers."""

from __future__ import annotations

import base64
import os
from typing import Any

import numpy as np
import side
from nixl._api import nixl_agent, nixl_agent_config


class Nixl:
    def __init__(self, memory: side.Memory) -> None:
        self.name = f"side-{os.getpid()}"
        self.agent = nixl_agent(self.name, nixl_agent_config(backends=["UCX"]))
        self.base = memory.base
        self.agent.register_memory([(memory.base, memory.bytes, 0, "")], "DRAM")
        self.prepared: list[Any] = []

    def address(self) -> str:
        return base64.b64encode(self.agent.get_agent_metadata()).decode()

    def connect(self, other: str, base: int) -> None:
        name = self.agent.add_remote_agent(base64.b64decode(other))
        self.other = name.decode() if isinstance(name, bytes) else name
        self.other_base = base
        self.agent.make_connection(self.other)

    def prepare(self, blocks: int, block_bytes: int) -> None:
        """Lists all blocks once, as vLLM's connector does."""
        for handle in self.prepared:
            self.agent.release_dlist_handle(handle)
        self.prepared = []
        if not hasattr(self, "other"):
            return
        starts = np.arange(blocks, dtype=np.int64) * block_bytes
        for name, base in (("NIXL_INIT_AGENT", self.base), (self.other, self.other_base)):
            listed = [(base + int(start), block_bytes, 0) for start in starts]
            self.prepared.append(self.agent.prep_xfer_dlist(name, listed, "DRAM"))

    def transfer(self, op: str, local: np.ndarray, remote: np.ndarray) -> None:
        ours, theirs = self.prepared
        handle = self.agent.make_prepped_xfer(op.upper(), ours, local, theirs, remote, b"")
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)
        if state != "DONE":
            raise RuntimeError(f"{op}: {state}")


if __name__ == "__main__":
    memory = side.memory_as_told()
    side.serve_side(side.Side(Nixl(memory), memory))
