"""A master of a pool, as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sysconfig
import urllib.error
import urllib.request
from pathlib import Path
from threading import Thread
from typing import IO, Any

from patience import DEADLINE_S

COMMAND = Path(sysconfig.get_path("scripts"), "kv-master")
HERE = ("--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1", "--port=0", "--metrics_port=0")


def drain(log: IO[str]) -> None:
    """Reads a log on, so that whoever writes it never blocks."""
    for _ in log:
        pass


class Master:
    """A master that serves, and where it answers HTTP."""

    def __init__(self, command: list[Any], environment: dict[str, str]) -> None:
        environment = os.environ | {"NO_COLOR": "1", "RUST_LOG": "info"} | environment
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True)
        assert self.process.stderr is not None
        said = ""
        for line in self.process.stderr:
            said += line
            if "master started" in line:
                break
        found = re.search(r"metrics=(\S+)", said)
        assert found, f"it ended without having started: {said}"
        self.url = f"http://{found[1]}"
        clients = re.search(r"clients=(\S+)", said)
        assert clients, said
        self.address = clients[1]
        self.said = said
        Thread(target=drain, args=(self.process.stderr,), daemon=True).start()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=DEADLINE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def terminate(self) -> int:
        """Ends it as an operator does; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def clean_up(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
