#!/usr/bin/env python3
"""Moves the same scattered blocks with kvferry, Mooncake and NIXL, in turn, and prints the ratios.

Each engine has two processes on this host. Blocks are shuffled at both ends, in memory of huge pages, or of
4 KiB pages that kvferry did not allocate (`foreign`), and every byte of every transfer is compared outside
the clock. In each round every engine moves each total a few times, one right after the other; a ratio is of
medians of one round, and what is printed is the median of the rounds, with their range: the machine's speed
drifts, and does so for all of them. Whoever has no turn is stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libraries import libraries
from pair import Failed, Pair

# What is compared: what carries it, the memory that it is in as kvbench calls it, and its pages.
KINDS = {
    "tcp": ("tcp", "shared", "huge"),
    "local": ("local", "shared", "huge"),
    "foreign": ("local", "foreign", "small"),
}

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text: str) -> int:
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(text[: -len(unit)]) * factor
    raise argparse.ArgumentTypeError(f"{text!r} is no size such as 64KiB or 1MiB")


def shown(bytes_: int) -> str:
    for unit, factor in reversed(UNITS.items()):
        if bytes_ % factor == 0:
            return f"{bytes_ // factor}{unit}"
    return str(bytes_)


@dataclass
class Round:
    """What an engine did in one round: medians of its transfers."""

    gbps: float
    seconds: float
    cpu_s_per_gib: float


@dataclass
class Contender:
    """An engine at one of the kinds of work."""

    name: str
    kind: str
    rounds: list[Round] = field(default_factory=list)
    failed: str | None = None

    def measure(self, op: str, block: int, total: int, times: int, seed: int) -> Round:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Kvferry(Contender):
    def __init__(self, kind: str, kvbench: Path) -> None:
        super().__init__("kvferry", kind)
        self.kvbench = kvbench

    def measure(self, op: str, block: int, total: int, times: int, seed: int) -> Round:
        transport, memory, _ = KINDS[self.kind]
        command = [str(self.kvbench), "transfer", "--transport", transport, "--memory", memory]
        command += ["--op", op]
        command += ["--block-size", shown(block), "--total", shown(total)]
        command += ["--iterations", str(times), "--seed", str(seed), "--json", "-"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            raise Failed(said[-1] if said else f"kvbench: status {done.returncode}")
        run = json.loads(done.stdout)["runs"][0]
        return Round(run["gbps"], run["p50_us"] / 1e6, run["cpu_s_per_gib"])


class Other(Contender):
    def __init__(
        self, name: str, kind: str, python: str, script: str, total: int, env: dict[str, str]
    ) -> None:
        super().__init__(name, kind)
        self.pair = Pair(python, script, (total, KINDS[kind][2]), env)
        self.pair.pause()
        self.warm: tuple[str, int] | None = None

    def measure(self, op: str, block: int, total: int, times: int, seed: int) -> Round:
        self.pair.resume()
        try:
            return self.measure_awake(op, block, total, times, seed)
        finally:
            self.pair.pause()

    def measure_awake(self, op: str, block: int, total: int, times: int, seed: int) -> Round:
        blocks = total // block
        if self.warm != (op, block):
            self.pair.measure(op, blocks, block, seed)
            self.warm = (op, block)
        found = [self.pair.measure(op, blocks, block, seed + n) for n in range(1, times + 1)]
        seconds = statistics.median(one["seconds"] for one in found)
        cpu = statistics.median(one["cpu_seconds"] for one in found)
        return Round(total / seconds / 1e9, seconds, cpu / (total / UNITS["GiB"]))

    def close(self) -> None:
        self.pair.close()


def contenders(arguments: argparse.Namespace, total: int) -> list[Contender]:
    home = Path(arguments.home)
    mooncake = {
        "MC_FORCE_TCP": "1",
        "MC_TCP_ENABLE_CONNECTION_POOL": "1",
        "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "4096",
        "LD_LIBRARY_PATH": libraries(home),
    }
    python = str(home / "env/bin/python")
    by_kind: dict[str, list[Contender]] = {}
    if "tcp" in arguments.kind:
        by_kind["tcp"] = [
            Kvferry("tcp", arguments.kvbench),
            Other("Mooncake", "tcp", python, "mooncake_side.py", total, mooncake),
            Other("NIXL", "tcp", python, "nixl_side.py", total, {"UCX_TLS": "tcp"}),
        ]
    for kind in ("local", "foreign"):
        if kind in arguments.kind:
            by_kind[kind] = [
                Kvferry(kind, arguments.kvbench),
                Other("NIXL", kind, python, "nixl_side.py", total, {}),
            ]
    return [one for kind in by_kind.values() for one in kind]


def run_cell(
    everybody: list[Contender], op: str, block: int, total: int, arguments: argparse.Namespace
) -> None:
    for one in everybody:
        one.rounds, one.failed = [], None
    for number in range(arguments.rounds):
        for one in everybody:
            if one.failed is None:
                try:
                    seed = 1 + number * (arguments.times + 1)
                    one.rounds.append(one.measure(op, block, total, arguments.times, seed))
                except Failed as failed:
                    one.failed = str(failed)
        if sys.stderr.isatty():
            print(f"\r{op} {shown(block)}: round {number + 1}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)


def row(one: Contender, ours: Contender, op: str, block: int, total: int) -> dict[str, Any]:
    """The figures of an engine, in the form of kvbench's, and how many times as fast ours is."""
    speeds = [r.gbps for r in one.rounds]
    pairs = [o.gbps / r.gbps for o, r in zip(ours.rounds, one.rounds, strict=False)]
    return {
        "system": one.name,
        "transport": KINDS[one.kind][0],
        "memory": KINDS[one.kind][1],
        "op": op,
        "pace": "bulk",
        "block_bytes": block,
        "total_bytes": total,
        "gbps": statistics.median(speeds),
        "gbps_min": min(speeds),
        "gbps_max": max(speeds),
        "p50_us": statistics.median(r.seconds for r in one.rounds) * 1e6,
        "cpu_s_per_gib": statistics.median(r.cpu_s_per_gib for r in one.rounds),
        "kvferry_times_as_fast": statistics.median(pairs),
        "kvferry_times_as_fast_min": min(pairs),
        "kvferry_times_as_fast_max": max(pairs),
        "verified": True,
    }


HEADER = "kind     op     block  system    GB/s  (range)       transfer     CPU s/GiB  kvferry is (range)"


def print_row(kind: str, figures: dict[str, Any]) -> None:
    speeds = f"({figures['gbps_min']:.2f}-{figures['gbps_max']:.2f})"
    times = (
        ""
        if figures["system"] == "kvferry"
        else (
            f"{figures['kvferry_times_as_fast']:.1f} x"
            f" ({figures['kvferry_times_as_fast_min']:.1f}-{figures['kvferry_times_as_fast_max']:.1f})"
        )
    )
    print(
        f"{kind:<7}  {figures['op']:<5} {shown(figures['block_bytes']):>6}"
        f"  {figures['system']:<8} {figures['gbps']:>5.2f}  {speeds:<12}"
        f" {figures['p50_us'] / 1000:>8.2f} ms  {figures['cpu_s_per_gib']:>9.2f}  {times}".rstrip(),
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kvbench", type=Path, required=True, help="the program, built for release")
    parser.add_argument("--home", default="target/peers", help="where setup.sh has put the others")
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=["tcp"])
    parser.add_argument("--op", nargs="+", choices=["write", "read"], default=["write", "read"])
    parser.add_argument("--block-size", nargs="+", type=size, default=[4 << 10, 64 << 10, 1 << 20, 4 << 20])
    parser.add_argument("--total", type=size, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--times", type=int, default=3, help="transfers of each engine in a round")
    parser.add_argument("--json", type=Path, help="where the figures go, as kvbench plot reads them")
    arguments = parser.parse_args()

    everybody = contenders(arguments, arguments.total)
    ours = {one.kind: one for one in everybody if one.name == "kvferry"}
    runs, all_went = [], True
    print(HEADER)
    try:
        for op in arguments.op:
            for block in arguments.block_size:
                run_cell(everybody, op, block, arguments.total, arguments)
                for one in everybody:
                    if one.failed is not None:
                        all_went = False
                        print(f"{one.kind} {op} {shown(block)} {one.name}: {one.failed}")
                    elif one.rounds:
                        runs.append(row(one, ours[one.kind], op, block, arguments.total))
                        print_row(one.kind, runs[-1])
    finally:
        for one in everybody:
            one.close()
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"runs": runs}, indent=1))
    return 0 if all_went else 1


if __name__ == "__main__":
    sys.exit(main())
