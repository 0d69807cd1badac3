"""`kv-master` as the wheel brings it, and by the name of Mooncake's master."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import IO, Any

import pytest
from patience import DEADLINE_S

Start = Callable[..., "Master"]

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


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts masters, and ends those that are left."""
    with ExitStack() as stack:

        def start(*command: str | Path, **environment: str) -> Master:
            master = Master(list(command), environment)
            stack.callback(master.clean_up)
            return master

        yield start


def test_the_master_of_the_wheel_starts_answers_and_ends_clean(start: Start) -> None:
    master = start(Path(sysconfig.get_path("scripts"), "kv-master"), *HERE)
    assert master.get("/health")[0] == 200
    status, figures = master.get("/metrics")
    assert status == 200 and "master_key_count" in figures
    assert master.terminate() == 0


@pytest.fixture
def as_mooncake(tmp_path: Path) -> Path:
    """A directory that the alias wheel is installed into."""
    (wheel,) = Path(os.environ["KVFERRY_TEST_WHEELS"]).glob("kvferry_as_mooncake-*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*pip, tmp_path, wheel], check=True)
    return tmp_path


def test_launchers_of_mooncakes_master_start_ours_with_its_flags(start: Start, as_mooncake: Path) -> None:
    assert shutil.which("mooncake_master", path=sysconfig.get_path("scripts")) is None, "not by accident"
    master = start(
        as_mooncake / "bin/mooncake_master",
        *HERE,
        "--enable_http_metadata_server=true",
        "--http_metadata_server_host=127.0.0.1",
        "--http_metadata_server_port=0",
        "--eviction_high_watermark_ratio=0.9",
        "--default_kv_lease_ttl=10000",
        "--rpc_thread_num=2",
        "--enable_metric_reporting=true",
        # The wheel's commands need not be on the path.
        **{"PYTHONPATH": str(as_mooncake), "PATH": "/nowhere"},
    )
    assert "metadata=Some(" in master.said
    assert master.get("/health")[0] == 200
    # It is this process itself: signals and exit codes are the master's.
    assert master.terminate() == 0


def test_a_flag_that_the_master_has_not_is_an_error(as_mooncake: Path) -> None:
    command = [str(as_mooncake / "bin/mooncake_master"), "--eviction_high_watermark_rato=0.9"]
    environment = os.environ | {"PYTHONPATH": str(as_mooncake)}
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "eviction-high-watermark-ratio" in refused.stderr
