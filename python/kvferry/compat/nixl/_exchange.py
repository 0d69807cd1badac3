"""Agents that send each other their metadata over a socket: one asks or tells, the other listens.

A message is a magic, what it is, its length and its bytes. Connections are few and short: each has
`TIMEOUT_S`, and `CONNECTIONS` may be open at once.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Callable

from ._errors import nixlBackendError, nixlInvalidParamError

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0
CONNECTIONS = 32
_MOST_BYTES = 64 << 20
_HEAD = struct.Struct("<4scI")
_MAGIC = b"KVFM"

LOAD = b"L"
FETCH = b"F"
INVALIDATE = b"I"

Answer = Callable[[bytes, bytes], bytes | None]


def _receive(connection: socket.socket) -> tuple[bytes, bytes]:
    def exactly(length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            part = connection.recv(min(length - len(parts), 1 << 16))
            if not part:
                raise ConnectionError("the connection ended in the middle of a message")
            parts += part
        return bytes(parts)

    magic, what, length = _HEAD.unpack(exactly(_HEAD.size))
    if magic != _MAGIC:
        raise ValueError("this is no message of an agent of kvferry")
    if length > _MOST_BYTES:
        raise ValueError(f"a message of {length} bytes is too long")
    return what, exactly(length)


def _send(connection: socket.socket, what: bytes, message: bytes) -> None:
    connection.sendall(_HEAD.pack(_MAGIC, what, len(message)) + message)


class Listener:
    """Answers what other agents ask for and say, for as long as there is somebody who does: `answer` gives
    the method, and None once its agent is gone, which is not to be held here."""

    def __init__(self, port: int, answer: Callable[[], Answer | None]) -> None:
        self._answer = answer
        self._room = threading.BoundedSemaphore(CONNECTIONS)
        try:
            if socket.has_dualstack_ipv6():
                self._socket = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
            else:
                self._socket = socket.create_server(("", port))
        except OSError as error:
            raise nixlBackendError(f"cannot listen for metadata on port {port}: {error}") from error
        #: The port that was got.
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._listen, name="kvferry-metadata", daemon=True).start()

    def close(self) -> None:
        """Listens no more."""
        # It wakes the thread that accepts, which closing alone does not.
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            logger.debug("the metadata socket was closed already")
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, address = self._socket.accept()
            except OSError:
                return
            if not self._room.acquire(blocking=False):
                logger.warning("metadata connection from %s refused: %d are open", address, CONNECTIONS)
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection, address), daemon=True).start()

    def _serve(self, connection: socket.socket, address: object) -> None:
        try:
            with connection:
                connection.settimeout(TIMEOUT_S)
                what, message = _receive(connection)
                answer = self._answer()
                if answer is None:
                    raise ConnectionError("the agent is gone")
                if (blob := answer(what, message)) is not None:
                    _send(connection, LOAD, blob)
        except Exception as error:
            # Whatever a stranger sends, this goes on.
            logger.warning("metadata from %s: %s", address, error)
        finally:
            self._room.release()


class Messenger:
    """Sends what an agent says, in the background: who wants to know whether it arrived looks."""

    def __init__(self) -> None:
        self._room = threading.BoundedSemaphore(CONNECTIONS)

    def send(
        self, host: str, port: int, what: bytes, message: bytes, on_answer: Callable[[bytes], object] | None
    ) -> None:
        """Sends, and hands the answer on where one is asked for."""
        if not host:
            raise nixlInvalidParamError("an address is needed: kvferry's agents use no metadata server")
        if not self._room.acquire(blocking=False):
            raise nixlBackendError(f"{CONNECTIONS} metadata messages are under way: try again later")
        arguments = (host, port, what, message, on_answer)
        threading.Thread(target=self._carry, args=arguments, daemon=True).start()

    def _carry(
        self, host: str, port: int, what: bytes, message: bytes, on_answer: Callable[[bytes], object] | None
    ) -> None:
        try:
            with socket.create_connection((host, port), timeout=TIMEOUT_S) as connection:
                _send(connection, what, message)
                if on_answer is not None:
                    kind, answer = _receive(connection)
                    if kind != LOAD:
                        raise ValueError("the answer is no metadata")
                    on_answer(answer)
        except Exception as error:
            logger.error("metadata for %s:%d: %s", host, port, error)
        finally:
            self._room.release()
