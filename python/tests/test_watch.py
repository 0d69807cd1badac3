"""The watch for workers behind ZeroMQ addresses, on real sockets."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
import zmq.asyncio
from kvferry.compat.mooncake import watch


def serve(pipe: Any) -> None:
    """A worker that answers nothing."""
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    pipe.send(socket.bind_to_random_port("tcp://127.0.0.1"))
    while True:
        socket.recv_multipart()


@pytest.fixture
def worker() -> Iterator[tuple[str, int]]:
    """The address of one, and its process."""
    method = multiprocessing.get_context("spawn")
    here, there = method.Pipe()
    process = method.Process(target=serve, args=(there,), daemon=True)
    process.start()
    assert here.poll(30)
    yield f"tcp://127.0.0.1:{here.recv()}", process.pid or 0
    process.kill()
    process.join()


def watched(address: str, seconds: float, act: Any = None, patience: float = 30.0) -> tuple[str, list[str]]:
    """What comes of something that takes so long, during which something is done; and who has ended."""
    ended: list[str] = []

    async def run() -> str:
        context = zmq.asyncio.Context()
        watches = watch.Watches(context, ended.append)

        async def work() -> None:
            if act is not None:
                await asyncio.sleep(0.3)
                act()
            await asyncio.sleep(seconds)

        try:
            await watches.during(address, work(), patience)
            return "done"
        except (ConnectionError, TimeoutError) as error:
            return str(error)
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)
            context.destroy(0)

    return asyncio.run(run()), ended


def test_work_that_ends_while_its_worker_is_there_is_done(worker: tuple[str, int]) -> None:
    assert watched(worker[0], 0.5) == ("done", [])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_work_is_given_up_when_its_worker_is_killed_or_does_not_answer(
    worker: tuple[str, int], number: signal.Signals
) -> None:
    address, process = worker
    said, ended = watched(address, 60, lambda: os.kill(process, number))
    assert said == f"{address} is gone"
    assert ended == [address]


def test_work_is_given_up_where_nobody_is() -> None:
    said, ended = watched("tcp://127.0.0.1:1", 60)
    assert "is gone" in said and ended == ["tcp://127.0.0.1:1"]


def test_work_that_takes_too_long_is_given_up(worker: tuple[str, int]) -> None:
    said, ended = watched(worker[0], 60, patience=0.5)
    assert "has not answered for 0.5 s" in said and ended == []
