"""What a case is: something that a program does with an interface, and what comes of it in a few words."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

#: Whether this process uses kvferry's interfaces; the published ones otherwise.
OURS = os.environ.get("KVFERRY_COMPARE_SIDE") == "ours"


@dataclass(frozen=True)
class Case:
    """One case. What it does is its function's first argument to the reader: its name."""

    name: str
    run: Callable[[], object]
    #: Why kvferry does something else, where it does.
    why: str


class Cases:
    """The cases of one interface, in the order in which the table has them."""

    def __init__(self) -> None:
        self.all: list[Case] = []

    def case(self, name: str, why: str = "") -> Callable[[Callable[[], object]], Callable[[], object]]:
        """Adds a case."""

        def add(run: Callable[[], object]) -> Callable[[], object]:
            self.all.append(Case(name, run, why))
            return run

        return add


def outcome(run: Callable[[], object]) -> str:
    """What it returns, or what it raises."""
    try:
        result = run()
    except Exception as error:
        return type(error).__name__
    return "nothing" if result is None else repr(result)
