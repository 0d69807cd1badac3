"""The wheel, as it is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import kvferry
import pytest

SCRIPTS = Path(sysconfig.get_path("scripts"))
PACKAGE = Path(kvferry.__file__).parent
COMMANDS = ("kvctl", "kvbench", "kv-master")


def test_what_is_tested_is_what_was_installed() -> None:
    assert PACKAGE.is_relative_to(sysconfig.get_path("platlib"))
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "_native.pyi").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_installed_and_run(command: str) -> None:
    said = subprocess.run([SCRIPTS / command, "--help"], capture_output=True, text=True, check=True)
    assert "Usage" in said.stdout


def test_it_imports_with_nothing_but_the_standard_library() -> None:
    """No numpy, no torch, no CUDA, no RDMA: neither of Python nor of the system."""
    script = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('numpy', 'torch', 'nixl', 'mooncake'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import kvferry, kvferry.compat.mooncake, kvferry.compat.nixl\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert not [name for name in ('cuda', 'ibverbs', 'rdmacm') if f'/lib{name}' in maps], maps\n"
    )
    subprocess.run([sys.executable, "-I", "-c", script], check=True)


@pytest.mark.skipif("KVFERRY_TEST_GLIBC" not in os.environ, reason="a quick wheel is for this machine only")
@pytest.mark.parametrize("file", [PACKAGE / "_native.abi3.so", *(SCRIPTS / command for command in COMMANDS)])
def test_it_asks_for_no_newer_glibc_than_it_says(file: Path) -> None:
    allowed = tuple(map(int, os.environ["KVFERRY_TEST_GLIBC"].split(".")))
    asked = {
        tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_(2[.\d]+)", file.read_bytes())
    }
    assert asked and max(asked) <= allowed


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("mooncake", "from mooncake.engine import TransferEngine; TransferEngine()"),
        (
            "nixl",
            "from nixl._api import nixl_agent; from nixl import _bindings; nixl_agent('one')",
        ),
    ],
)
def test_programs_that_cannot_be_changed_are_given_the_names_they_import(
    tmp_path: Path, name: str, program: str
) -> None:
    script = f"{program}; import {name}; assert {name}.__file__.startswith({str(tmp_path)!r})"
    command = [sys.executable, "-c", script]
    unknown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in unknown.stderr, "not by accident"
    (wheel,) = Path(os.environ["KVFERRY_TEST_WHEELS"]).glob(f"kvferry_as_{name}-*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*pip, tmp_path, wheel], check=True)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run(command, env=environment, check=True)
    genuine = tmp_path / {"mooncake": "mooncake_transfer_engine_non_cuda", "nixl": "nixl"}[name]
    metadata = genuine.with_name(f"{genuine.name}-1.0.dist-info")
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {genuine.name}\nVersion: 1.0\n")
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "are both installed" in refused.stderr
