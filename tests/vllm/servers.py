"""Real vLLM servers and the real router, as processes of their own, and requests to them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

HOST = "127.0.0.1"
HERE = Path(__file__).resolve().parent
HOME = Path(os.environ["KVFERRY_VLLM_HOME"])
"""What `setup` made: `env`, `models`."""
UP_S = 300
"""How long a server may take to be up: a minute on two idle cores, more on busy ones."""


def free_port() -> int:
    """A port that is free, below those that the kernel gives out by itself."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port


def until(what: str, seconds: float, condition: Any) -> Any:
    """Waits until a condition holds, looked at often; fails by name when it does not come in time."""
    deadline = time.monotonic() + seconds
    while not (met := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.02)
    return met


@dataclass
class Answer:
    """What came of a completion."""

    status: int
    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0
    """Until all of it was there."""
    first: float = 0.0
    """Until its first token was there, where it was streamed."""
    body: Any = None


class Process:
    """A process and its children, with a log."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], logs: Path) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self._out = self.log.open("ab")
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=self._out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._family: list[psutil.Process] = []

    def alive(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def family(self) -> list[psutil.Process]:
        """It and what descends from it, remembered: children of one that is dead have another parent."""
        with contextlib.suppress(psutil.NoSuchProcess):
            this = psutil.Process(self._process.pid)
            self._family = [this, *this.children(recursive=True)]
        return self._family

    def signal(self, number: int, title: str = "") -> None:
        """Signals those whose title contains a text: all of them without one."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                if title in " ".join(process.cmdline()):
                    process.send_signal(number)

    def ports(self, title: str) -> list[int]:
        """The ports of `HOST` on which those listen whose titles contain a text."""
        return [
            connection.laddr.port
            for process in self.family()
            if title in " ".join(process.cmdline())
            for connection in process.net_connections("tcp4")
            if connection.status == psutil.CONN_LISTEN and connection.laddr.ip == HOST
        ]

    def kill(self) -> None:
        """Kills all of it, as a host that fails does."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        psutil.wait_procs(self._family, timeout=10)

    def stop(self) -> None:
        """Ends it as an operator would, and kills what is left."""
        if self.alive():
            self.family()
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        self.signal(signal.SIGCONT)
        self.kill()
        self._out.close()


class Server(Process):
    """A vLLM server of a tiny model."""

    def __init__(
        self,
        name: str,
        logs: Path,
        *,
        transfer: dict[str, Any],
        model: str = "full",
        port: int = 0,
        environment: dict[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        cache_mib: int = 32,
        niceness: int = 0,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.began = time.monotonic()
        command = [
            *("nice", "-n", str(niceness)),
            *(str(HOME / "env/bin/vllm"), "serve", str(HOME / "models" / model)),
            *("--host", HOST, "--port", str(self.port), "--served-model-name", "tiny"),
            *("--dtype", "float32", "--max-model-len", "2048"),
            *("--max-num-seqs", "8", "--enforce-eager", "--block-size", "32"),
            *("--kv-cache-memory-bytes", str(cache_mib << 20)),
            *("--kv-transfer-config", json.dumps(transfer)),
            *arguments,
        ]
        fixed = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_HOST_IP": HOST,
            "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
            "KVFERRY_ADVERTISE_HOST": HOST,
            "KVFERRY_LOG": "kvferry_engine=info",
        }
        given = {**fixed, **(environment or {})}
        # Two cores are few for so many processes.
        paths = [str(HERE / "patient"), given.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))]
        given["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        super().__init__(name, command, given, logs)

    def healthy(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return bool(httpx.get(f"{self.url}/health", timeout=5).status_code == 200)
        return False

    def up(self) -> None:
        """Returns once it serves."""

        def serving() -> bool:
            if not self.alive():
                tail = "\n".join(self.said().splitlines()[-60:])
                raise AssertionError(f"{self.name} ended as it started, see {self.log}:\n{tail}")
            return self.healthy()

        until(f"{self.name} is up", UP_S, serving)
        print(f"{self.name} was up after {time.monotonic() - self.began:.0f} s")

    def metric(self, name: str, **labels: str) -> float:
        """A metric's value: the sum over all series with these labels. It has to be there."""
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        values = []
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            found, _, rest = series.partition("{")
            if found == name and all(f'{label}="{wanted}"' in rest for label, wanted in labels.items()):
                values.append(float(value))
        assert values, f"{self.name} has no metric {name} {labels}"
        return sum(values)

    def counts(self, expected: float, name: str, **labels: str) -> None:
        """Waits until a metric has a value: what workers count comes with a later step, after the answer."""
        seen = []

        def counted() -> bool:
            seen.append(self.metric(name, **labels))
            return seen[-1] == expected

        try:
            until("the metric has its value", 10, counted)
        except AssertionError as late:
            raise AssertionError(f"{name} {labels} of {self.name} is {seen[-1]}, not {expected}") from late

    def idle(self) -> bool:
        """Whether no block of its cache is held by anybody."""
        return self.metric("vllm:kv_cache_usage_perc") == 0


class Router(Process):
    """vllm-router before one prefill and one decode instance."""

    def __init__(self, logs: Path, connector: str, prefill: list[str], decode: str, *arguments: str) -> None:
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        command = [
            *(str(HOME / "env/bin/vllm-router"), "--host", HOST, "--port", str(self.port)),
            *("--vllm-pd-disaggregation", "--kv-connector", connector, "--disable-retries"),
            *("--prefill", *prefill, "--decode", decode, "--prometheus-port", str(free_port())),
            *("--disable-circuit-breaker", "--policy", "round_robin"),
            # An instance that is back is soon seen, however long it was away; a slow one is not given up.
            *("--health-check-interval-secs", "2", "--health-success-threshold", "1"),
            *("--health-failure-threshold", "10"),
            *arguments,
        ]
        super().__init__("router", command, {}, logs)

    def up(self) -> None:
        def serving() -> bool:
            assert self.alive(), f"the router ended as it started, see {self.log}:\n{self.said()[-3000:]}"
            with contextlib.suppress(httpx.HTTPError):
                return bool(httpx.get(f"{self.url}/health", timeout=5).status_code == 200)
            return False

        until("the router is up", 60, serving)


def prompt(tokens: int) -> str:
    """A text of this many tokens that no other is like: the models have one for each byte."""
    text = f"{uuid.uuid4()} "
    return (text + " ".join(str(random.randrange(10_000)) for _ in range(tokens)))[:tokens]


def body(text: str, *, tokens: int = 12, **more: Any) -> dict[str, Any]:
    """A greedy completion. Its prefix cache is its own: others do not find there what was transferred."""
    fixed = {"model": "tiny", "temperature": 0, "return_token_ids": True, "cache_salt": uuid.uuid4().hex}
    return {**fixed, "prompt": text, "max_tokens": tokens, "ignore_eos": True, **more}


def complete(url: str, text: str, *, tokens: int = 12, timeout: float = 120, **more: Any) -> Answer:
    """Asks for a completion, and waits for all of it."""
    began = time.monotonic()
    reply = httpx.post(f"{url}/v1/completions", json=body(text, tokens=tokens, **more), timeout=timeout)
    answer = Answer(reply.status_code, seconds=time.monotonic() - began)
    with contextlib.suppress(ValueError):
        answer.body = reply.json()
    if reply.status_code == 200:
        answer.tokens = answer.body["choices"][0]["token_ids"]
    return answer


def streamed(
    url: str, text: str, *, tokens: int, begun: threading.Event | None = None, timeout: float = 120
) -> Answer:
    """Asks for a completion token by token. Says when it has begun: it has its blocks from then on.
    `timeout` is for each token."""
    began = time.monotonic()
    request = body(text, tokens=tokens, stream=True)
    with httpx.stream("POST", f"{url}/v1/completions", json=request, timeout=timeout) as reply:
        answer = Answer(reply.status_code)
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                answer.body = json.loads(line.removeprefix("data: "))
                if "choices" not in answer.body:
                    # What goes wrong from then on is said in the stream.
                    answer.status = 500
                    break
                answer.first = answer.first or time.monotonic() - began
                if begun is not None:
                    begun.set()
                for choice in answer.body["choices"]:
                    answer.tokens += choice["token_ids"] or ()
    answer.seconds = time.monotonic() - began
    return answer


@contextlib.contextmanager
def at_once(workers: int = 8) -> Iterator[ThreadPoolExecutor]:
    """Threads to ask from."""
    with ThreadPoolExecutor(workers) as pool:
        yield pool
