"""How an agent behaves, and the forms in which programs give names and messages."""

from __future__ import annotations

import os

from ._bindings import DEFAULT_COMM_PORT, nixl_thread_sync_t


class nixl_agent_config:
    """How an agent behaves. Threads and locking are the engine's own: what is set of them is accepted."""

    def __init__(
        self,
        enable_prog_thread: bool = True,
        enable_listen_thread: bool = False,
        listen_port: int = DEFAULT_COMM_PORT,
        capture_telemetry: bool = False,
        num_threads: int = 0,
        backends: list[str] | None = None,
        sync_mode: nixl_thread_sync_t | None = None,
    ) -> None:
        if sync_mode is not None and not isinstance(sync_mode, nixl_thread_sync_t):
            raise TypeError(f"sync_mode must be a nixl_thread_sync_t (got {type(sync_mode).__name__!r})")
        self.backends = ["UCX"] if backends is None else backends
        self.enable_pthread = enable_prog_thread
        self.enable_listen = enable_listen_thread
        self.port = listen_port
        self.capture_telemetry = capture_telemetry
        self.num_threads = num_threads
        self.sync_mode = sync_mode


class AgentName(str):
    """An agent's name. NIXL's agent gives bytes where its documentation says a string: programs that decode
    it find it decoded."""

    __slots__ = ()

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The name."""
        return str(self)


def name_of(name: str | bytes) -> str:
    """A name that is given in either form."""
    return name.decode() if isinstance(name, bytes) else str(name)


def message_of(message: bytes | str) -> bytes:
    """A message that is given in either form."""
    return message.encode() if isinstance(message, str) else bytes(message)


def advertised() -> str | None:
    """What to advertise, where the variable says so."""
    host = os.environ.get("KVFERRY_ADVERTISE_HOST")
    if not host:
        return None
    return f"[{host}]:0" if ":" in host else f"{host}:0"
