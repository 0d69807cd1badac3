"""Runs the cases against kvferry's interfaces and the published ones, side by side.

    run.py case INTERFACE NUMBER                      one case, in the interpreter that runs this
    run.py table --ours PYTHON --published PYTHON     all, and the tables of docs/compat.md
    run.py check --ours PYTHON --published PYTHON     fails where docs/compat.md is wrong about kvferry

Each case has a process of its own, so that one that crashes or hangs is an outcome, too. The published wheels
are those that benches/peers/setup.sh installs; `benches/peers` is to be in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from libraries import libraries

HERE = Path(__file__).parent
DOCUMENT = HERE.parent.parent / "docs" / "compat.md"
TIMEOUT_S = 40
INTERFACES = {"mooncake": "Mooncake's transfer engine", "nixl": "NIXL's agent"}
MARK = "outcome: "


def run_case(interface: str, number: int) -> None:
    from cases import outcome

    cases = importlib.import_module(f"{interface}_cases").cases
    sys.stdout.write(f"\n{MARK}{outcome(cases.all[number].run)}\n")
    sys.stdout.flush()
    # What an engine does at the end is not what is compared.
    os._exit(0)


def ask(python: str, side: str, interface: str, number: int) -> str:
    environment = os.environ | {"KVFERRY_COMPARE_SIDE": side, "KVFERRY_ADVERTISE_HOST": "127.0.0.1"}
    if side == "published":
        # Its environment is where setup.sh has installed it.
        environment["LD_LIBRARY_PATH"] = libraries(Path(python).absolute().parents[2])
    command = [python, str(HERE / "run.py"), "case", interface, str(number)]
    try:
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "hangs"
    found = [line for line in ran.stdout.splitlines() if line.startswith(MARK)]
    if not found:
        sys.stderr.write(f"{interface} {number} on {side}: {ran.returncode}\n{ran.stderr[-2000:]}\n")
        return "crashes" if ran.returncode < 0 else "does not start"
    return found[-1].removeprefix(MARK)


def names(python: str, interface: str) -> list[tuple[str, str]]:
    script = f"import {interface}_cases as c; [print(x.name, x.why, sep='\\t') for x in c.cases.all]"
    environment = os.environ | {"KVFERRY_COMPARE_SIDE": "ours"}
    told = subprocess.run(
        [python, "-c", script], cwd=HERE, env=environment, capture_output=True, text=True, check=True
    )
    listed = [line.split("\t") for line in told.stdout.splitlines()]
    return [(name, why) for name, why in listed]


def table(arguments: argparse.Namespace, interface: str) -> tuple[list[str], list[str]]:
    """The lines of a table, and what is wrong with them."""
    listed = names(arguments.ours, interface)
    with ThreadPoolExecutor(2) as pool:
        sides = {
            side: list(pool.map(lambda n, p=python, s=side: ask(p, s, interface, n), range(len(listed))))
            for side, python in (("ours", arguments.ours), ("published", arguments.published))
        }
    lines, wrong = ["| what | published | kvferry | why |", "|---|---|---|---|"], []
    for (name, why), ours, published in zip(listed, sides["ours"], sides["published"], strict=True):
        differs = ours != published
        if differs and not why:
            wrong.append(f"{interface}: {name}: {published} is {ours} here, for no reason that is given")
        if ours in ("hangs", "crashes", "does not start"):
            wrong.append(f"{interface}: {name}: {ours}")
        cells = [f"`{cell}`".replace("|", "\\|") for cell in (published, ours)]
        lines.append(
            f"| {name} | {cells[0]} | {cells[1] if differs else 'the same'} | {why if differs else ''} |"
        )
    return lines, wrong


def markers(interface: str) -> tuple[str, str]:
    """Between which lines of the document an interface's table stands."""
    return f"<!-- {interface}: begin -->\n", f"<!-- {interface}: end -->"


def with_tables(document: str, tables: dict[str, list[str]]) -> str:
    for interface, lines in tables.items():
        begin, end = markers(interface)
        before, _, rest = document.partition(begin)
        _, _, after = rest.partition(end)
        document = before + begin + "\n".join(lines) + "\n" + end + after
    return document


def rows(document: str) -> dict[str, tuple[str, str]]:
    """What a document's tables say that each case comes to, there and here."""
    cells = []
    for interface in INTERFACES:
        begin, end = markers(interface)
        lines = document.partition(begin)[2].partition(end)[0].splitlines()
        listed = [line.replace("\\|", "\0").split("|") for line in lines if line.startswith("| ")]
        cells += [[cell.strip() for cell in line] for line in listed]
    return {
        name: (published, published if ours == "the same" else ours)
        for _, name, published, ours, _, _ in cells
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("case")
    one.add_argument("interface", choices=INTERFACES)
    one.add_argument("number", type=int)
    for name in ("table", "check"):
        both = commands.add_parser(name)
        both.add_argument("--ours", required=True, help="an interpreter that has kvferry")
        both.add_argument("--published", required=True, help="an interpreter that has the published wheels")
    arguments = parser.parse_args()
    if arguments.command == "case":
        return run_case(arguments.interface, arguments.number)
    tables, wrong = {}, []
    for interface in INTERFACES:
        tables[interface], found = table(arguments, interface)
        wrong += found
    document = DOCUMENT.read_text()
    now = with_tables(document, tables)
    if arguments.command == "table":
        DOCUMENT.write_text(now)
    else:
        said, seen = rows(document), rows(now)
        for name, (published, ours) in seen.items():
            if name not in said or said[name][1] != ours:
                wrong.append(f"docs/compat.md does not say of {name!r} that it comes to {ours}")
            elif said[name][0] != published:
                sys.stderr.write(f"{name!r} comes to {published} on the published wheel this time\n")
        wrong += [f"docs/compat.md has {name!r}, which is no case" for name in said.keys() - seen.keys()]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
