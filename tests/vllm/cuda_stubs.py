#!/usr/bin/env python3
"""Puts empty libraries in the place of NVIDIA's, so that PyTorch's CUDA build loads where they are not.

    cuda_stubs.py DIRECTORY_OF_TORCH_LIBRARIES

Which libraries and which symbols are missing is read from the libraries that are there: a symbol with a
version says which file it wants it from, one without may come from any. Every function says "no device".
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

NVIDIA = re.compile(r"lib(cu|nv|nccl)")
NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE


def readelf(*arguments: str) -> list[str]:
    run = subprocess.run(["readelf", "-W", *arguments], check=True, capture_output=True, text=True)
    return run.stdout.splitlines()


def body(symbol: str) -> str:
    """What a function answers: a text where its name promises one, success where it registers, else no
    device."""
    if re.search(r"(String|Name)$", symbol):
        return f'const char *{symbol}(void) {{ return "there is no CUDA here"; }}'
    harmless = symbol.startswith("__") or symbol.endswith("LastError")
    return f"long {symbol}(void) {{ return {0 if harmless else NO_DEVICE}; }}"


def missing(directory: Path) -> dict[str, dict[str, set[str]]]:
    """Of each library that is wanted and not there: the symbols, by version ("" for none)."""
    wanted: set[str] = set()
    defined: set[str] = set()
    loose: set[str] = set()
    versioned: dict[str, set[str]] = defaultdict(set)  # version -> symbols
    files: dict[str, str] = {}  # version -> file
    for library in sorted(directory.glob("*.so*")):
        for line in readelf("-d", str(library)):
            if found := re.search(r"\(NEEDED\).*\[(.+)\]", line):
                wanted.add(found[1])
        file = ""
        for line in readelf("-V", str(library)):
            if found := re.search(r"Version: \d+ +File: (\S+)", line):
                file = found[1]
            elif file and (found := re.search(r"Name: (\S+) +Flags:", line)):
                files[found[1]] = file
        for line in readelf("--dyn-syms", str(library)):
            columns = line.split()
            if len(columns) < 8 or not columns[0].endswith(":"):
                continue
            name, _, version = columns[7].partition("@")
            if columns[6] != "UND":
                defined.add(name)
            elif version:
                versioned[version.lstrip("@")].add(name)
            elif columns[4] != "WEAK":
                loose.add(name)
    stubs: dict[str, dict[str, set[str]]] = {
        soname: defaultdict(set)
        for soname in sorted(wanted)
        if NVIDIA.match(soname) and not (directory / soname).exists()
    }
    for version, symbols in versioned.items():
        if (file := files.get(version, "")) in stubs:
            stubs[file][version] |= symbols
    if stubs:
        prefixes = re.compile(r"(cu[a-zA-Z]|nv|p?nccl|__cu)")
        loose_stub = next(iter(stubs.values()))
        loose_stub[""] |= {name for name in loose - defined if prefixes.match(name)}
    return stubs


def build(directory: Path, soname: str, symbols: dict[str, set[str]]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch, "stub.c"), Path(scratch, "versions.map")
        names = sorted(set().union(*symbols.values()))
        source.write_text("\n".join(body(name) for name in names) + "\nint kvferry_stub;\n")
        command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{soname}"]
        versions = {version: names for version, names in symbols.items() if version}
        if versions:
            script.write_text(
                "\n".join(
                    f"{version} {{ global: {'; '.join(sorted(names))}; }};"
                    for version, names in versions.items()
                )
            )
            command.append(f"-Wl,--version-script={script}")
        subprocess.run([*command, "-o", str(directory / soname), str(source)], check=True)


def main() -> None:
    directory = Path(sys.argv[1])
    stubs = missing(directory)
    for soname, symbols in stubs.items():
        build(directory, soname, symbols)
    print(f"stood in for {len(stubs)} CUDA libraries in {directory}")


if __name__ == "__main__":
    main()
