"""How an agent and others get to know each other: metadata, from hand to hand or over a socket."""

from __future__ import annotations

import json
import weakref

from ..._errors import Error
from ..._native import Descriptors, Engine
from .._memory import Shared
from . import _exchange, _metadata
from ._bindings import DEFAULT_COMM_PORT
from ._config import AgentName, name_of
from ._descs import nixlRegDList, nixlXferDList
from ._errors import as_nixl, nixlNotFoundError
from ._remotes import Remotes


class Introductions:
    """The part of an agent that other agents are known by."""

    name: str
    backends: dict[str, int]
    _engine: Engine
    _memory: Shared

    def __init__(self, name: str, engine: Engine, listen_port: int | None) -> None:
        self._remotes = Remotes(name, engine)
        self._messenger = _exchange.Messenger()
        answer = weakref.WeakMethod(self._answer)
        self._listener = None if listen_port is None else _exchange.Listener(listen_port, answer)
        #: The port on which metadata is listened for; None without that.
        self.listen_port = None if self._listener is None else self._listener.port

    def _check_backends(self, backends: list[str] | None) -> None:
        for backend in backends or ():
            if backend not in self.backends:
                raise nixlNotFoundError(f"the agent has no backend {backend!r}: it has {list(self.backends)}")

    def get_agent_metadata(self) -> bytes:
        """What another agent needs to reach this one and all that it registers, now and later."""
        return self._metadata(True, None).encode()

    def get_partial_agent_metadata(
        self,
        descs: nixlRegDList | nixlXferDList | None,
        inc_conn_info: bool = False,
        backends: list[str] | None = None,
    ) -> bytes:
        """The same of some memory only. Without memory it introduces this agent and no more."""
        self._check_backends(backends)
        scope = Descriptors() if descs is None else descs.descriptors
        registered = Descriptors.from_rows(self._memory.keys())
        if (missing := scope.first_outside(registered)) is not None:
            raise nixlNotFoundError(f"{scope[missing]} is not registered")
        return self._metadata(inc_conn_info or len(scope) == 0, scope).encode()

    def _metadata(self, introduces: bool, scope: Descriptors | None) -> _metadata.Metadata:
        engine = self._engine
        return _metadata.Metadata(self.name, engine.address, engine.incarnation, introduces, scope)

    def add_remote_agent(self, metadata: bytes) -> AgentName:
        """Gets to know another agent, and connects to it. One that has started again takes the place of
        the one before."""
        return AgentName(self._remotes.load(_metadata.decode(metadata)))

    def remove_remote_agent(self, agent: str | bytes) -> None:
        """Forgets an agent, if it is known: transfers that are prepared with it are refused from now on."""
        self._remotes.forget(name_of(agent))

    def check_remote_metadata(self, agent: str | bytes, descs: nixlXferDList | None = None) -> bool:
        """Whether an agent is known and reached, and shares these ranges."""
        remote = self._remotes.find(name_of(agent))
        if remote is None or not remote.is_there():
            return False
        return descs is None or remote.find(descs.descriptors) is None

    def make_connection(self, remote_agent: str | bytes, backends: list[str] | None = None) -> None:
        """Connects, if it is not connected any more."""
        self._check_backends(backends)
        remote = self._remotes.get(name_of(remote_agent))
        try:
            remote.peer.ready()
        except Error as error:
            raise as_nixl(error) from error

    def send_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """Sends this agent's metadata to one that listens, in the background."""
        self._messenger.send(ip_addr, port, _exchange.LOAD, self.get_agent_metadata(), None)

    def send_partial_agent_metadata(
        self,
        descs: nixlRegDList,
        inc_conn_info: bool = False,
        backends: list[str] | None = None,
        ip_addr: str = "",
        port: int = DEFAULT_COMM_PORT,
        label: str = "",
    ) -> None:
        """As `send_local_metadata`, of some memory only."""
        partial = self.get_partial_agent_metadata(descs, inc_conn_info, backends)
        self._messenger.send(ip_addr, port, _exchange.LOAD, partial, None)

    def fetch_remote_metadata(
        self, remote_agent: str, ip_addr: str = "", port: int = DEFAULT_COMM_PORT, label: str = ""
    ) -> None:
        """Asks an agent that listens for its metadata, and loads it, in the background."""

        def load(blob: bytes) -> None:
            metadata = _metadata.decode(blob)
            if metadata.name != name_of(remote_agent):
                raise ValueError(f"{metadata.name!r} answers, not {name_of(remote_agent)!r}")
            self._remotes.load(metadata)

        self._messenger.send(ip_addr, port, _exchange.FETCH, b"", load)

    def invalidate_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """Has an agent that listens forget this one, in the background."""
        said = {"name": self.name, "incarnation": f"{self._engine.incarnation:016x}"}
        self._messenger.send(ip_addr, port, _exchange.INVALIDATE, json.dumps(said).encode(), None)

    def _answer(self, what: bytes, message: bytes) -> bytes | None:
        """What another agent is answered, that has sent a message."""
        if what == _exchange.FETCH:
            return self.get_agent_metadata()
        if what == _exchange.LOAD:
            self._remotes.load(_metadata.decode(message))
            return None
        if what == _exchange.INVALIDATE:
            said = json.loads(message)
            # Only by its own number: another may have the name by now.
            self._remotes.forget(str(said["name"]), int(said["incarnation"], 16))
            return None
        raise ValueError(f"there is no message {what!r}")
