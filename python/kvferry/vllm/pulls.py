"""What a decode worker knows of the prefill workers that it pulls from, and of its open pulls.

A pull is one request's blocks from one prefill worker. Beside the pulls a connection to each prefill worker
is kept that carries nothing: it ends when the worker does, or does not answer ZeroMQ's heartbeats, which its
own threads do however busy Python is. vLLM's sockets reconnect by themselves and say nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

if TYPE_CHECKING:
    import kvferry

logger = logging.getLogger("vllm.kvferry")

HEARTBEAT_MS = 1_000
"""How often a prefill worker's sockets are asked for a sign of life."""
SILENCE_MS = 5_000
"""After how much silence it is taken to be gone."""

_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Pull(dict[str, Any]):
    """The request of one pull, as vLLM takes it: a mapping with one entry. And what of it is still open."""

    def __init__(self, request: str, meta: Any) -> None:
        super().__init__({request: meta})
        self.grant: kvferry.Grant | None = None
        self.mark = ""
        """What names the grant behind this host."""
        self.is_short = False
        """Whether the prefill worker is asked without the table of layers, which it should have."""
        self.unanswered = {request}


class Watches:
    """The connections to prefill workers that tell of their end. Used on one event loop."""

    def __init__(self, context: zmq.asyncio.Context, on_end: Callable[[str], None]) -> None:
        self._context = context
        self._on_end = on_end
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def end_of(self, address: str) -> asyncio.Event:
        """Is set when the worker at this address ends. One that has ended before is tried again."""
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
            logger.warning("prefill worker %s is gone (%s)", address, event.name)
        except zmq.ContextTerminated:
            return
        finally:
            self._ends.pop(address, None)
            monitor.close(0)
            socket.disable_monitor()
            socket.close(0)
        end.set()
        self._on_end(address)
