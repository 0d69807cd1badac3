#!/usr/bin/env python3
"""Serves the same prompts with vLLM over kvferry and over vLLM's own engines, in turn; prints the ratios.

A pair is a prefill and a decode instance on this host, and vllm-router before them. Pairs run one after the
other, each engine's in each round: started, warmed up, asked one prompt at a time, and stopped. What is timed
is the time to the first token, as a client of the router sees it, and each transfer, as the connector's own
statistics have it. After each prompt the decode instance answers the same one by itself: its tokens have to
be the same, and what it takes to the first is what a request costs without being moved.

A pair that is up has --limit seconds in a round: what it was not asked by then is left out, and the table
says of how many prompts its figures are.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from libraries import libraries
from servers import HOME, Router, Server, free_port, streamed, until

HERE = Path(__file__).resolve().parent
INTERVAL_S = 0.2
"""How often vLLM logs statistics: shorter than a request takes, so that a line is about one transfer."""
LOGGED = re.compile(
    r"Num successful transfers=(\d+), Avg xfer time \(ms\)=([\d.]+).*?Avg MB per transfer=([\d.]+)"
)
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"out": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {
        "vllm": {"handlers": ["out"], "level": "INFO", "propagate": False},
        # Of an interval in which nothing was computed it is said at this level, transfers included.
        "vllm.v1.metrics.loggers": {"level": "DEBUG"},
    },
}
"""How vLLM logs."""
TOKENS = 8
"""How many tokens are asked for."""
START_S = 75
"""About how long a pair takes until it is up, and to end."""
LAST_S = 20
"""How long is waited for what a pair has counted."""


class Failed(Exception):
    """An engine did not do what it was asked."""


@dataclass
class Round:
    """What a pair did in its turn: medians over its requests, in seconds, and mebibytes of a transfer."""

    first_token: float
    alone: float
    transfer: float
    mebibytes: float
    prompts: int
    """Of how many prompts, where the time did not suffice for all."""


@dataclass
class Contender:
    """An engine under one of vLLM's connectors."""

    engine: str
    connector: str
    transfer: dict[str, Any]
    environment: dict[str, str]
    rounds: dict[int, Round] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


def prompts(number: int, count: int, tokens: int) -> list[str]:
    """The prompts of a round: the same for everybody. The model has a token for each byte."""
    chance = random.Random(number)
    return [" ".join(str(chance.randrange(10_000)) for _ in range(tokens))[:tokens] for _ in range(count)]


def logged_transfers(server: Server) -> list[tuple[float, float]]:
    """Each transfer that a server has logged: seconds, and mebibytes."""
    found = []
    for count, milliseconds, size in LOGGED.findall(server.said()):
        found += [(float(milliseconds) / 1e3, float(size))] * int(count)
    return found


class Pair:
    """A prefill and a decode instance, and the router before them."""

    def __init__(self, contender: Contender, logs: Path, started: ExitStack) -> None:
        self.name = f"{contender.engine} under {contender.connector}"
        side_channel, bootstrap = free_port(), free_port()
        logging = logs / "logging.json"
        logging.write_text(json.dumps(LOGGING))
        environment = {
            "VLLM_LOGGING_CONFIG_PATH": str(logging),
            "PYTHONPATH": "",
            "VLLM_LOG_STATS_INTERVAL": str(INTERVAL_S),
            "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(bootstrap),
            **contender.environment,
        }

        def start(role: str, kv_role: str, port: int) -> Server:
            name = f"{contender.engine}-{contender.connector}-{role}"
            own = environment | {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}
            transfer = {**contender.transfer, "kv_role": kv_role}
            server = Server(name, logs, transfer=transfer, model="wide", environment=own, cache_mib=256)
            started.callback(server.stop)
            return server

        self.prefill = start("prefill", "kv_producer", side_channel)
        self.decode = start("decode", "kv_consumer", free_port())
        self.prefill.up()
        self.decode.up()
        mooncake = contender.connector == "MooncakeConnector"
        address = [self.prefill.url, str(bootstrap)] if mooncake else [self.prefill.url]
        self.router = Router(logs, "mooncake" if mooncake else "nixl", address, self.decode.url)
        started.callback(self.router.stop)
        self.router.up()
        # Who moves blocks counts transfers: with Mooncake's interface the one that writes.
        self.counts = self.prefill if mooncake else self.decode

    def ask(self, url: str, text: str, deadline: float) -> Any:
        """The answer to a prompt; none where it would come too late."""
        if (left := deadline - time.monotonic()) <= 0:
            return None
        try:
            answer = streamed(url, text, tokens=TOKENS, timeout=left)
        except httpx.TimeoutException:
            return None
        if time.monotonic() > deadline:
            return None
        if answer.status != 200 or len(answer.tokens) != TOKENS:
            raise Failed(f"a request had {len(answer.tokens)} tokens of {TOKENS}, and this: {answer.body}")
        return answer

    def measure(self, number: int, arguments: argparse.Namespace) -> Round:
        warming = prompts(-number, arguments.warm_up, arguments.tokens)
        texts = prompts(number, arguments.prompts, arguments.tokens)
        began = time.monotonic()
        deadline = began + arguments.limit
        for text in warming:
            if self.ask(self.router.url, text, deadline) is None:
                raise Failed(f"not warmed up within {arguments.limit} s")
        answers, alone = [], []
        for text in texts:
            moved = self.ask(self.router.url, text, deadline)
            by_itself = self.ask(self.decode.url, text, deadline) if moved is not None else None
            if moved is None or by_itself is None:
                break
            if moved.tokens != by_itself.tokens:
                raise Failed("tokens are not those that the decode instance gives by itself")
            answers.append(moved)
            alone.append(by_itself)
        if not answers:
            raise Failed(f"no prompt was answered within {arguments.limit} s")
        # What workers count comes with a later step: the next request's, which may come late.
        self.ask(self.router.url, warming[0], time.monotonic() + LAST_S)
        expected = len(warming) + len(answers)
        until("transfers are logged", LAST_S, lambda: len(logged_transfers(self.counts)) >= expected)
        transfers = logged_transfers(self.counts)[len(warming) : expected]
        took = time.monotonic() - began
        print(f"{self.name}: {len(answers)} of {len(texts)} prompts in {took:.0f} s", file=sys.stderr)
        return Round(
            first_token=statistics.median(answer.first for answer in answers),
            alone=statistics.median(answer.first for answer in alone),
            transfer=statistics.median(seconds for seconds, _ in transfers),
            mebibytes=statistics.median(size for _, size in transfers),
            prompts=len(answers),
        )


def contenders(arguments: argparse.Namespace) -> list[list[Contender]]:
    """Who is measured, ours before the engine that it stands in for."""
    mooncake = {
        "MC_FORCE_TCP": "1",
        "MC_TCP_ENABLE_CONNECTION_POOL": "1",
        "LD_LIBRARY_PATH": libraries(HOME.parent / "peers"),
        "PYTHONPATH": str(HERE / "in_tree"),
    }
    tcp = {"kv_connector_extra_config": {"mooncake_protocol": "tcp"}}
    path = "kv_connector_module_path"
    found = {
        "mooncake": [
            Contender(
                "kvferry",
                "MooncakeConnector",
                {"kv_connector": "MooncakeConnector", path: "kvferry.vllm", **tcp},
                {},
            ),
            Contender(
                "Mooncake",
                "MooncakeConnector",
                {"kv_connector": "MooncakeConnector", path: "in_tree_on_cpu", **tcp},
                mooncake,
            ),
        ],
        "nixl": [
            Contender(
                "kvferry",
                "NixlConnector",
                {"kv_connector": "NixlConnector", path: "kvferry.vllm"},
                {"KVFERRY_TRANSPORT": "tcp"},
            ),
            Contender("NIXL", "NixlConnector", {"kv_connector": "NixlConnector"}, {"UCX_TLS": "tcp"}),
        ],
    }
    return [found[name] for name in arguments.interface]


def take_turn(one: Contender, number: int, logs: Path, arguments: argparse.Namespace) -> None:
    directory = logs / f"round-{number}"
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as started:
        try:
            one.rounds[number] = Pair(one, directory, started).measure(number, arguments)
        except (AssertionError, Failed, httpx.HTTPError) as error:
            said = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            one.failures[number] = said[0] if len(said) == 1 else f"{said[0]} {said[-1]}"


def shown(values: list[float], factor: float = 1.0) -> str:
    """A median, and the range."""
    scaled = [value * factor for value in values]
    return f"{statistics.median(scaled):.1f} ({min(scaled):.1f}-{max(scaled):.1f})"


def row(one: Contender, ours: Contender) -> dict[str, Any]:
    """The figures of an engine, and how ours compare: theirs, divided by ours, round by round."""
    figures: dict[str, Any] = {"system": one.engine, "connector": one.connector, "transport": "tcp"}
    for name in ("first_token", "alone", "transfer"):
        figures[f"{name}_ms"] = [getattr(turn, name) * 1e3 for turn in one.rounds.values()]
    figures["prompts"] = [turn.prompts for turn in one.rounds.values()]
    figures["transfer_mib"] = statistics.median(turn.mebibytes for turn in one.rounds.values())
    both = one.rounds.keys() & ours.rounds.keys()
    if one is not ours and both:
        turns = [(one.rounds[number], ours.rounds[number]) for number in sorted(both)]
        figures["first_token_ratio"] = [theirs.first_token / our.first_token for theirs, our in turns]
        figures["transfer_ratio"] = [theirs.transfer / our.transfer for theirs, our in turns]
    return figures


HEADER = (
    f"{'connector':<18} {'engine':<9} {'first token, ms':>22} {'of one alone':>22} {'a transfer, ms':>20}"
    f" {'GB/s':>5} {'prompts':>8}  kvferry is: first token, transfer"
)


def print_row(figures: dict[str, Any]) -> None:
    seconds = statistics.median(figures["transfer_ms"]) / 1e3
    ratios = ""
    if "transfer_ratio" in figures:
        ratios = f"{shown(figures['first_token_ratio'])} x, {shown(figures['transfer_ratio'])} x as fast"
    print(
        f"{figures['connector']:<18} {figures['system']:<9} {shown(figures['first_token_ms']):>22}"
        f" {shown(figures['alone_ms']):>22} {shown(figures['transfer_ms']):>20}"
        f" {figures['transfer_mib'] * (1 << 20) / seconds / 1e9:>5.2f}"
        f" {'+'.join(map(str, figures['prompts'])):>8}  {ratios}".rstrip(),
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--interface", nargs="+", choices=["mooncake", "nixl"], default=["mooncake", "nixl"])
    parser.add_argument("--rounds", type=int, default=2, help="how often each pair is started")
    parser.add_argument("--prompts", type=int, default=20, help="of each pair in a round")
    parser.add_argument("--warm-up", type=int, default=3, help="prompts before those")
    parser.add_argument("--limit", type=float, default=60, help="seconds that a pair has in a round")
    parser.add_argument("--tokens", type=int, default=1024, help="in a prompt, at most 2000")
    parser.add_argument("--json", type=Path, help="where the figures go")
    arguments = parser.parse_args()

    # Whoever ends this ends the servers, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    logs = HOME.parent / "vllm-bench-logs" / time.strftime("%Y%m%d-%H%M%S")
    print(f"logs are in {os.path.relpath(logs)}", file=sys.stderr)
    runs, all_went = [], True
    tables = contenders(arguments)
    turns = arguments.rounds * sum(map(len, tables))
    most = turns * (START_S + arguments.limit + LAST_S) / 60
    print(f"{turns} turns, of at most {arguments.limit:.0f} s once up: up to {most:.0f} min", file=sys.stderr)
    for both in tables:
        for number in range(1, arguments.rounds + 1):
            for one in both:
                take_turn(one, number, logs, arguments)
    print(HEADER)
    for both in tables:
        for one in both:
            if one.rounds:
                runs.append(row(one, both[0]))
                print_row(runs[-1])
            for number, failure in one.failures.items():
                all_went = False
                print(f"{one.connector:<18} {one.engine:<9} round {number} failed: {failure}")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"runs": runs}, indent=1))
    return 0 if all_went else 1


if __name__ == "__main__":
    sys.exit(main())
