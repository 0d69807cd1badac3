"""The way between processes of this host, made to lead through this one: a connection can be held in the
middle of what it carries.

They listen on one address of the loopback network, and a detour on another. What would send a process to the
first address is changed, as it passes, to send it to the other.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from contextlib import ExitStack

from servers import HOST

OTHER = "127.0.0.2"
"""Where detours listen. As long as `HOST`: what is changed keeps its length."""
CHUNK = 64 << 10


class Detour:
    """Passes on what comes to ports of `OTHER`, each to one of `HOST`, and the answers."""

    def __init__(self, ports: Mapping[int, int], change: str = "") -> None:
        """`change` is a text with `HOST` in it that is passed on with `OTHER` in its place."""
        self._change = change.encode(), change.replace(HOST, OTHER).encode()
        self._left: int | None = None
        self._may_pass = threading.Condition()
        self._over = False
        self.holds = threading.Event()
        """Set once something is held."""
        self._sockets = ExitStack()
        for port, target in ports.items():
            listener = self._sockets.enter_context(socket.socket())
            # Small, and what is accepted has it, too: whoever sends is soon held up.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((OTHER, port))
            listener.listen()
            threading.Thread(target=self._accept, args=(listener, target), daemon=True).start()

    def hold_after(self, size: int) -> None:
        """Passes on this many bytes of what goes to `HOST`, over all connections, and holds the rest."""
        with self._may_pass:
            self._left = size

    def release(self) -> None:
        """Passes on what is held, and whatever comes."""
        with self._may_pass:
            self._left = None
            self._may_pass.notify_all()

    def close(self) -> None:
        """Cuts everything."""
        with self._may_pass:
            self._over = True
            self._may_pass.notify_all()
            self._sockets.close()

    def _accept(self, listener: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection((HOST, port))
                with self._may_pass:
                    for end in (near, far):
                        self._sockets.callback(close, end)
                for source, target in ((near, far), (far, near)):
                    pass_on = threading.Thread(
                        target=self._pass_on, args=(source, target, target is far), daemon=True
                    )
                    pass_on.start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if all(self._change):
                    data = data.replace(*self._change)
                while data:
                    size = self._allowed(len(data)) if is_counted else len(data)
                    target.sendall(data[:size])
                    data = data[size:]
        close(target)

    def _allowed(self, size: int) -> int:
        """How many of these bytes may pass now: some, unless everything is over."""
        with self._may_pass:
            if self._left == 0:
                self.holds.set()
                self._may_pass.wait_for(lambda: self._left != 0 or self._over)
            if self._over:
                raise ConnectionAbortedError
            if self._left is None:
                return size
            self._left -= (size := min(size, self._left))
            return size


def close(end: socket.socket) -> None:
    """Ends a connection both ways: a close alone leaves a thread that reads it waiting."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
