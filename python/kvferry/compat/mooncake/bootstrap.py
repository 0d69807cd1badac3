"""The bootstrap server of Mooncake's connectors, as a program that starts one calls it."""

from __future__ import annotations

from ... import bootstrap

__all__ = ["MooncakeBootstrapServer"]


class MooncakeBootstrapServer:
    """`MooncakeBootstrapServer` as in vLLM, over `kvferry.bootstrap.Server`: it gives a worker that starts
    again its rank back, answers once all ranks are there, and forgets the dead."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._server: bootstrap.Server | None = None

    def start(self) -> None:
        """Serves, from when this returns on. Raises where the port is taken."""
        if self._server is None:
            self._server = bootstrap.Server(f"{self.host}:{self.port}")
            self.port = self._server.port

    def shutdown(self) -> None:
        """Ends it. May be called again, and before it was started."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
