"""One process of a pair that moves blocks with somebody else's engine.

It does what `kvbench` does with ours: the same shuffled blocks, memory of the same size in pages of the
same size, huge ones or those of 4 KiB, every byte of every transfer checked outside the clock. Commands
and answers are lines of JSON on standard input and output; `compare.py` gives them.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

HUGE_PAGE = 2 << 20


class Engine(Protocol):
    """What is measured."""

    def address(self) -> str:
        """What the other side needs to reach this one."""

    def connect(self, other: str, base: int) -> None:
        """Makes ready for transfers with the other side, whose memory begins at `base`."""

    def prepare(self, blocks: int, block_bytes: int) -> None:
        """Makes ready for transfers of blocks of this size."""

    def transfer(self, op: str, local: np.ndarray, remote: np.ndarray) -> None:
        """Moves the blocks with these numbers, and returns when all of them have arrived."""


class Memory:
    """Memory of this process alone: in huge pages, as far as the kernel has them, or in none."""

    def __init__(self, bytes_: int, in_huge_pages: bool) -> None:
        self.map = mmap.mmap(-1, bytes_ + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        skipped = -start % HUGE_PAGE
        self.map.madvise(mmap.MADV_HUGEPAGE if in_huge_pages else mmap.MADV_NOHUGEPAGE)
        self.base = start + skipped
        self.bytes = bytes_
        self.array = np.frombuffer(self.map, np.uint8, bytes_, skipped)
        self.array[:] = 0


def memory_as_told() -> Memory:
    """Memory of so many bytes and such pages as the command line says."""
    bytes_, pages = sys.argv[1:]
    return Memory(int(bytes_), in_huge_pages=pages == "huge")


def orders(seed: int, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Which block goes where: two shuffles, one for each side."""
    random = np.random.default_rng(seed)
    return random.permutation(blocks), random.permutation(blocks)


def contents(seed: int, blocks: int, block_bytes: int) -> np.ndarray:
    """Bytes that say which block of which transfer they are, one row a block."""
    words = np.arange(blocks * block_bytes // 8, dtype=np.uint64)
    words = (words + np.uint64(seed << 40)) * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(32)
    return words.view(np.uint8).reshape(blocks, block_bytes)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Side:
    """Carries out what it is told."""

    def __init__(self, engine: Engine, memory: Memory) -> None:
        self.engine = engine
        self.memory = memory
        self.shape = (0, 0)

    def rows(self) -> np.ndarray:
        blocks, block_bytes = self.shape
        return self.memory.array[: blocks * block_bytes].reshape(blocks, block_bytes)

    def connect(self, address: str, base: int) -> dict[str, Any]:
        self.engine.connect(address, base)
        return {}

    def shape_as(self, blocks: int, block_bytes: int) -> dict[str, Any]:
        self.shape = (blocks, block_bytes)
        self.engine.prepare(blocks, block_bytes)
        return {}

    def fill(self, seed: int, mine: int) -> dict[str, Any]:
        """Puts the contents where this side's order has them."""
        self.rows()[orders(seed, self.shape[0])[mine]] = contents(seed, *self.shape)
        return {}

    def check(self, seed: int, mine: int) -> dict[str, Any]:
        """How many blocks are not what they have to be, where this side's order has them."""
        found = self.rows()[orders(seed, self.shape[0])[mine]]
        return {"wrong": int((found != contents(seed, *self.shape)).any(axis=1).sum())}

    def transfer(self, op: str, seed: int) -> dict[str, Any]:
        local, remote = orders(seed, self.shape[0])
        cpu, began = cpu_seconds(), time.perf_counter()
        self.engine.transfer(op, local, remote)
        return {"seconds": time.perf_counter() - began, "cpu_seconds": cpu_seconds() - cpu}

    def cpu(self) -> dict[str, Any]:
        return {"cpu_seconds": cpu_seconds()}


def serve(commands: dict[str, Callable[..., dict[str, Any]]], hello: dict[str, Any]) -> None:
    """Says that it is there, and does what it is told until standard input ends."""
    answer(hello)
    for line in sys.stdin:
        command = json.loads(line)
        answer(commands[command.pop("do")](**command))


def serve_side(side: Side) -> None:
    """The same for one of a pair."""
    names = ("connect", "shape_as", "fill", "check", "transfer", "cpu")
    hello = {"address": side.engine.address(), "base": side.memory.base}
    serve({name: getattr(side, name) for name in names}, hello)


def answer(what: dict[str, Any]) -> None:
    ANSWERS.write(json.dumps(what) + "\n")
    ANSWERS.flush()


# Engines log to standard output, some of them from C++: what they say there goes where it can be read,
# and the answers have a descriptor of their own.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
