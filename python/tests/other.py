"""Another process: a function of a test, and a pipe to it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from patience import until

_CONTEXT = multiprocessing.get_context("spawn")
# Generous: a busy machine takes seconds to start an interpreter.
PATIENCE_S = 60.0


class Pipe:
    """An end of the pipe between the two."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def tell(self, value: Any = None) -> None:
        self._connection.send(value)

    def hear(self) -> Any:
        if not self._connection.poll(PATIENCE_S):
            raise TimeoutError("the other process says nothing")
        return self._connection.recv()


def _run(role: Callable[..., None], connection: Any, arguments: tuple[Any, ...]) -> None:
    role(Pipe(connection), *arguments)


def _state(task: Path) -> str:
    # The name before it may hold anything, brackets and spaces included.
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


class Other(Pipe):
    """A process that runs `role(pipe, *arguments)`."""

    def __init__(self, role: Callable[..., None], *arguments: Any) -> None:
        ours, theirs = _CONTEXT.Pipe()
        super().__init__(ours)
        self._process = _CONTEXT.Process(target=_run, args=(role, theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def kill(self) -> None:
        """Ends it as a crash does, and waits until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.join(PATIENCE_S)

    def stop(self) -> None:
        """Stops it, and returns once each of its threads has."""
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: all(_state(task) == "T" for task in Path(f"/proc/{self.pid}/task").iterdir()))

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> int | None:
        """Waits until it has ended by itself; its exit code."""
        self._process.join(PATIENCE_S)
        return self._process.exitcode

    def clean_up(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join(PATIENCE_S)
