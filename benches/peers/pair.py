"""Processes with somebody's engine, told what to do; two of them as a pair."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

# A side that does not answer for this long is taken for hung.
PATIENCE_S = 120


class Failed(Exception):
    """An engine did not do what it was asked."""


class Process:
    def __init__(self, python: str, script: str, arguments: list[str], env: dict[str, str]) -> None:
        self.log = tempfile.TemporaryFile()
        self.name = script
        self.process = subprocess.Popen(
            [python, str(HERE / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=os.environ | env,
        )
        self.hello = self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        hung = threading.Timer(PATIENCE_S, self.process.kill)
        hung.start()
        try:
            line = self.process.stdout.readline()
        finally:
            hung.cancel()
        if not line:
            raise Failed(f"{self.name} ended, or hung: {self.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def last_words(self) -> str:
        self.log.seek(0)
        said = self.log.read().decode(errors="replace").strip().splitlines()
        return said[-1] if said else "it said nothing"

    def do(self, what: str, **how: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": what} | how) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"{self.name} is gone: {self.last_words()}") from None
        return self.answer()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


class Pair:
    """An initiator and a target that know each other."""

    def __init__(self, python: str, script: str, memory: tuple[int, str], env: dict[str, str]) -> None:
        """`memory` is how many bytes each has, in pages that are `huge` or `small`."""
        arguments = [str(memory[0]), memory[1]]
        self.target = Process(python, script, arguments, env)
        self.initiator = Process(python, script, arguments, env)
        self.target.do("connect", **self.initiator.hello)
        self.initiator.do("connect", **self.target.hello)
        self.shape = (0, 0)

    def measure(self, op: str, blocks: int, block_bytes: int, seed: int) -> dict[str, float]:
        """One transfer, checked: its time, and the CPU time of both ends."""
        if self.shape != (blocks, block_bytes):
            for side in (self.initiator, self.target):
                side.do("shape_as", blocks=blocks, block_bytes=block_bytes)
            self.shape = (blocks, block_bytes)
        sides = [(self.initiator, 0), (self.target, 1)]
        (source, source_order), (sink, sink_order) = sides if op == "write" else sides[::-1]
        source.do("fill", seed=seed, mine=source_order)
        before = self.target.do("cpu")["cpu_seconds"]
        found = self.initiator.do("transfer", op=op, seed=seed)
        after = self.target.do("cpu")["cpu_seconds"]
        wrong = sink.do("check", seed=seed, mine=sink_order)["wrong"]
        if wrong:
            raise Failed(f"{wrong} of {blocks} blocks are not what was sent")
        return {
            "seconds": found["seconds"],
            "cpu_seconds": found["cpu_seconds"] + after - before,
        }

    def pause(self) -> None:
        """Stops both processes: some engines poll for work all the time, which others would pay for."""
        for side in (self.initiator, self.target):
            side.send(signal.SIGSTOP)

    def resume(self) -> None:
        for side in (self.initiator, self.target):
            side.send(signal.SIGCONT)

    def close(self) -> None:
        for side in (self.initiator, self.target):
            side.close()
