"""A process of a Mooncake pool, over TCP: one that lends memory, or one that puts and gets.

    mooncake_store.py lend MASTER BYTES
    mooncake_store.py use MASTER BYTES

Commands and answers are lines of JSON on standard input and output; `pool.py` gives them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import side
from mooncake.store import MooncakeDistributedStore

# What a client keeps for copies of its own; buffers that are registered need none.
LOCAL_BYTES = 16 << 20


class Failed(Exception):
    """The store did not do what it was asked."""


def join(master: str, lent: int) -> MooncakeDistributedStore:
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", lent, LOCAL_BYTES, "tcp", "", master)
    if code != 0:
        raise Failed(f"setup: {code}")
    return store


def each(what: str, codes: list[int], expected: int) -> None:
    wrong = [code for code in codes if code != expected]
    if wrong:
        raise Failed(f"{what}: {len(wrong)} of {len(codes)} ended with {wrong[0]}")


class User:
    """Puts and gets objects that lie one behind the other in its memory."""

    def __init__(self, store: MooncakeDistributedStore, memory: side.Memory) -> None:
        self.store, self.memory = store, memory
        code = store.register_buffer(memory.base, memory.bytes)
        if code != 0:
            raise Failed(f"registering memory: {code}")
        self.names = 0

    def keys(self, count: int) -> list[str]:
        """New ones, as long as those of vLLM's store connector."""
        first, self.names = self.names, self.names + count
        rank = "llama-3.1-8b@cfg:0123456789ab@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@"
        return [f"{rank}{number:064x}" for number in range(first, first + count)]

    def places(self, count: int, bytes_: int) -> tuple[list[int], list[int]]:
        return [self.memory.base + number * bytes_ for number in range(count)], [bytes_] * count

    def fill(self, count: int, bytes_: int, seed: int) -> np.ndarray:
        """Puts contents into memory, and returns them."""
        contents = side.contents(seed, count, bytes_)
        self.memory.array[: count * bytes_] = contents.reshape(-1)
        return contents

    def check(self, contents: np.ndarray) -> None:
        found = self.memory.array[: contents.size].reshape(contents.shape)
        if (found != contents).any():
            raise Failed("an object is not as it was put")

    def remove(self, keys: list[str]) -> None:
        each("removing", [self.store.remove(key, True) for key in keys], 0)

    def batch(self, count: int, bytes_: int, seed: int) -> dict[str, Any]:
        """One batch: how long putting it took, and getting it."""
        keys, (places, lengths) = self.keys(count), self.places(count, bytes_)
        contents = self.fill(count, bytes_, seed)
        began = time.perf_counter()
        put = self.store.batch_put_from(keys, places, lengths)
        put_s = time.perf_counter() - began
        each("putting", put, 0)
        self.memory.array[: count * bytes_] = 0
        began = time.perf_counter()
        got = self.store.batch_get_into(keys, places, lengths)
        get_s = time.perf_counter() - began
        each("getting", got, bytes_)
        self.check(contents)
        self.remove(keys)
        return {"put_s": put_s, "get_s": get_s}

    def calls(self, count: int, bytes_: int, seed: int) -> dict[str, Any]:
        """Single objects, one call after the other: how many a second of each kind."""
        keys, (places, lengths) = self.keys(count), self.places(count, bytes_)
        contents = self.fill(count, bytes_, seed)
        objects = list(zip(keys, places, lengths, strict=True))
        put = self.timed("put", lambda: [self.store.put_from(*one) for one in objects], 0)
        self.memory.array[: count * bytes_] = 0
        get = self.timed("get", lambda: [self.store.get_into(*one) for one in objects], bytes_)
        self.check(contents)
        exists = self.timed("exists", lambda: [self.store.is_exist(key) for key in keys], 1)
        self.remove(keys)
        return {"put": count / put, "get": count / get, "exists": count / exists}

    def timed(self, what: str, call: Callable[[], list[int]], expected: int) -> float:
        began = time.perf_counter()
        codes = call()
        elapsed = time.perf_counter() - began
        each(what, codes, expected)
        return elapsed

    def batches(self, count: int, bytes_: int, seed: int, times: int) -> dict[str, Any]:
        """Medians of several batches."""
        found = [self.batch(count, bytes_, seed + number) for number in range(times)]
        return {kind: statistics.median(one[kind] for one in found) for kind in ("put_s", "get_s")}


def main() -> None:
    role, master, bytes_ = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if role == "lend":
        store = join(master, bytes_)
        side.serve({}, {})
        store.close()
        return
    memory = side.Memory(bytes_, in_huge_pages=True)
    user = User(join(master, 0), memory)
    side.serve({"batches": user.batches, "calls": user.calls}, {})
    user.store.close()


if __name__ == "__main__":
    main()
