"""Tells when the worker behind a ZeroMQ address is gone: its process ended, or does not answer ZeroMQ's
heartbeats, which its own threads do however busy its program is. ZeroMQ's sockets reconnect by themselves and
say nothing, so whoever waits for an answer would wait for ever.

Needs `pyzmq`, which programs that talk to such workers have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

__all__ = ["Watches"]

logger = logging.getLogger(__name__)

HEARTBEAT_MS = 1_000
"""How often a worker's socket is asked for a sign of life."""
SILENCE_MS = 5_000
"""After how much silence it is taken to be gone."""

_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Watches:
    """A connection to each worker that carries nothing, and tells of its end. Used on one event loop."""

    def __init__(self, context: zmq.asyncio.Context, on_end: Callable[[str], None]) -> None:
        self._context = context
        self._on_end = on_end
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def during(self, address: str, work: Coroutine[Any, Any, None], patience: float) -> None:
        """Does something with the worker at an address, for as long as that is there: raises
        `ConnectionError` when it goes, and `TimeoutError` when it has taken too long."""
        doing = asyncio.create_task(work)
        gone = asyncio.create_task(self._end_of(address).wait())
        try:
            await asyncio.wait({doing, gone}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            if gone.done():
                raise ConnectionError(f"{address} is gone")
            raise TimeoutError(f"{address} has not answered for {patience} s")
        finally:
            doing.cancel()
            gone.cancel()

    def _end_of(self, address: str) -> asyncio.Event:
        """Is set when the worker ends. One that has ended before is tried again."""
        end = self._ends.get(address)
        if end is None:
            end = self._ends[address] = asyncio.Event()
            task = asyncio.create_task(self._watch(address, end))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return end

    async def _watch(self, address: str, end: asyncio.Event) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, SILENCE_MS)
        monitor = socket.get_monitor_socket(_ENDED)
        try:
            socket.connect(address)
            event = parse_monitor_message(await monitor.recv_multipart())["event"]
            logger.warning("worker %s is gone (%s)", address, event.name)
        except zmq.ContextTerminated:
            return
        finally:
            self._ends.pop(address, None)
            monitor.close(0)
            socket.disable_monitor()
            socket.close(0)
        end.set()
        self._on_end(address)
