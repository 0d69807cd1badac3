#!/usr/bin/env python3
"""Puts and gets the same objects with kvferry's pool and Mooncake's, in turn, and prints the ratios.

Each pool has a master, a process that lends and one that puts and gets, all on this host. In each round each
pool puts new objects in batches, gets them back, compares every byte and removes them; only putting and
getting is timed. Then one thread puts, gets and asks for single objects of 4 KiB. A ratio is of medians of
one round, and what is printed is the median of the rounds, with their range.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from compare import UNITS, shown, size
from libraries import libraries
from pair import Failed, Process

CALL_BYTES = 4096


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Mooncake:
    """Its pool: `mooncake_master`, a process that lends, one that puts and gets."""

    def __init__(self, home: Path, memory_bytes: int, lent_bytes: int) -> None:
        env = {"MC_FORCE_TCP": "1", "MC_TCP_ENABLE_CONNECTION_POOL": "1", "LD_LIBRARY_PATH": libraries(home)}
        python, port = str(home / "env/bin/python"), free_port()
        flags = [f"--rpc_port={port}", f"--metrics_port={free_port()}", "--rpc_address=127.0.0.1"]
        self.log = tempfile.TemporaryFile()
        self.master = subprocess.Popen(
            [str(home / "env/bin/mooncake_master"), *flags],
            stdout=self.log,
            stderr=self.log,
            env=os.environ | env,
        )
        at = f"127.0.0.1:{port}"
        self.processes = [
            Process(python, "mooncake_store.py", [role, at, str(bytes_)], env)
            for role, bytes_ in (("lend", lent_bytes), ("use", memory_bytes))
        ]

    def batches(self, batch: int, bytes_: int, times: int, seed: int) -> dict[str, float]:
        took = self.processes[1].do("batches", count=batch, bytes_=bytes_, seed=seed, times=times)
        return {op: batch * bytes_ / took[f"{op}_s"] / 1e9 for op in ("put", "get")}

    def calls(self, count: int, seed: int) -> dict[str, float]:
        found: dict[str, float] = self.processes[1].do("calls", count=count, bytes_=CALL_BYTES, seed=seed)
        return found

    def close(self) -> None:
        for process in self.processes:
            process.close()
        self.master.kill()
        self.master.wait()
        self.log.close()


class Kvferry:
    """Ours: `kvbench pool` starts its processes, and ends them."""

    def __init__(self, kvbench: Path, transport: str) -> None:
        self.kvbench, self.transport = kvbench, transport

    def run(self, *arguments: str) -> dict[str, Any]:
        command = [str(self.kvbench), "pool", "--transport", self.transport, "--json", "-", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            raise Failed(said[-1] if said else f"kvbench: status {done.returncode}")
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def batches(self, batch: int, bytes_: int, times: int, seed: int) -> dict[str, float]:
        how = ["--object", shown(bytes_), "--batch", str(batch), "--iterations", str(times)]
        runs = self.run(*how, "--seed", str(seed), "--calls", "0")["pool"]
        return {run["op"]: run["gbps"] for run in runs}

    def calls(self, count: int, in_flight: int, seed: int) -> dict[str, float]:
        how = ["--object", "4KiB", "--batch", "1", "--iterations", "1"]
        runs = self.run(*how, "--seed", str(seed), "--calls", str(count))["calls"]
        return {run["op"]: run["per_s"] for run in runs if run["in_flight"] == in_flight}


@dataclass
class Cell:
    """What both did in each round, in one unit."""

    what: str
    unit: str
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        ratios = [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]
        return {
            "what": self.what,
            "unit": self.unit,
            "kvferry": statistics.median(self.ours),
            "mooncake": statistics.median(self.theirs),
            "kvferry_times_as_fast": statistics.median(ratios),
            "kvferry_times_as_fast_min": min(ratios),
            "kvferry_times_as_fast_max": max(ratios),
        }


def measure(
    rounds: int,
    name: str,
    unit: str,
    ours: Callable[[int], dict[str, float]],
    theirs: Callable[[int], dict[str, float]],
) -> list[dict[str, Any]]:
    """Both in turn; a cell for each operation."""
    cells: dict[str, Cell] = {}
    for number in range(rounds):
        seed = 1 + 1000 * number
        found = ours(seed), theirs(seed)
        for op in found[0]:
            cell = cells.setdefault(op, Cell(f"{op} {name}", unit))
            cell.ours.append(found[0][op])
            cell.theirs.append(found[1][op])
    figures = [cell.figures() for cell in cells.values()]
    for one in figures:
        digits = 2 if unit == "GB/s" else 0
        spread = f"({one['kvferry_times_as_fast_min']:.1f}-{one['kvferry_times_as_fast_max']:.1f})"
        print(
            f"{one['what']:<34} {one['kvferry']:>9.{digits}f} {one['mooncake']:>9.{digits}f} {unit:<5}"
            f"  {one['kvferry_times_as_fast']:.1f} x {spread}",
            flush=True,
        )
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kvbench", type=Path, required=True, help="the program, built for release")
    parser.add_argument("--home", type=Path, default=Path("target/peers"), help="where setup.sh has put them")
    parser.add_argument("--kind", nargs="+", choices=["tcp", "local"], default=["tcp", "local"])
    parser.add_argument("--object", nargs="+", type=size, default=[64 << 10, 1 << 20, 4 << 20])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--times", type=int, default=3, help="batches of each pool in a round")
    parser.add_argument("--json", type=Path, help="where the figures go")
    arguments = parser.parse_args()

    most = max(arguments.batch * max(arguments.object), arguments.calls * CALL_BYTES)
    theirs = Mooncake(arguments.home, most, 4 * most + UNITS["GiB"])
    found: list[dict[str, Any]] = []
    print(f"{'what':<34} {'kvferry':>9} {'Mooncake':>9}        kvferry is (range)")
    try:
        batch, times, rounds = arguments.batch, arguments.times, arguments.rounds
        for kind in arguments.kind:
            ours = Kvferry(arguments.kvbench, kind)
            for bytes_ in arguments.object:
                batches = partial(ours.batches, batch, bytes_, times)
                name = f"{batch} of {shown(bytes_)}, {kind}"
                found += measure(rounds, name, "GB/s", batches, partial(theirs.batches, batch, bytes_, times))
            for in_flight in (1, 32):
                calls = partial(ours.calls, arguments.calls, in_flight)
                name = f"4KiB, {in_flight} at a time, {kind}"
                found += measure(rounds, name, "/s", calls, partial(theirs.calls, arguments.calls))
    except Failed as failed:
        print(failed, file=sys.stderr)
        return 1
    finally:
        theirs.close()
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"pool": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
