"""`kv-master` as the wheel brings it, and by the name of Mooncake's master."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from masters import COMMAND, HERE, Master

Start = Callable[..., Master]


def test_the_master_of_the_wheel_starts_answers_and_ends_clean(start: Start) -> None:
    master = start(COMMAND, *HERE)
    assert master.get("/health")[0] == 200
    status, figures = master.get("/metrics")
    assert status == 200 and "master_key_count" in figures
    assert master.terminate() == 0


@pytest.fixture(scope="module")
def as_mooncake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that the alias wheel is installed into."""
    directory = tmp_path_factory.mktemp("mooncake")
    (wheel,) = Path(os.environ["KVFERRY_TEST_WHEELS"]).glob("kvferry_as_mooncake-*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*pip, directory, wheel], check=True)
    return directory


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
