"""`nixl_agent` as in `nixl._api`: the methods, their arguments, what they return and raise.

What is better here: completion and notifications depend on nobody polling; a transfer that is released under
way is cancelled for certain; memory is registered and taken back at any time, and other agents follow; every
method can be called from any thread; an agent that has started again is another, and no harm is done.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import weakref
from typing import Any

from ..._errors import Error
from ..._native import Descriptors, Engine, Pairs, Post, Region, Report, process_registry
from .. import _letters
from . import _descs, _exchange, _metadata
from ._bindings import DEFAULT_COMM_PORT, nixl_thread_sync_t, nixlXferTelemetry
from ._descs import nixlRegDList, nixlRemoteDList, nixlXferDList
from ._errors import (
    as_nixl,
    nixlInvalidParamError,
    nixlNoTelemetryError,
    nixlNotFoundError,
    nixlNotSupportedError,
)
from ._handles import nixl_prepped_dlist_handle, nixl_xfer_handle
from ._remotes import Remote, Remotes

logger = logging.getLogger(__name__)

__all__ = [
    "DEFAULT_COMM_PORT",
    "AgentName",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_backend_handle",
    "nixl_prepped_dlist_handle",
    "nixl_thread_sync_t",
    "nixl_xfer_handle",
]

nixl_backend_handle = int

# What carries transfers, by the names that programs ask for it: UCX chooses by itself, and so does this.
_BACKENDS = ("UCX", "KVFERRY")
_WAYS = {"WRITE": "write", "READ": "read"}
_KIND = b"N"
_PATIENCE_S = 1.0
# What a transfer is taken to move in a second before one was measured.
_BYTES_PER_S = 1e9


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
        return str(self)


def _name(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _message(message: bytes | str) -> bytes:
    return message.encode() if isinstance(message, str) else bytes(message)


class nixl_agent:
    """An agent of this process, on an engine of its own."""

    def __init__(
        self,
        agent_name: str,
        nixl_conf: nixl_agent_config | None = None,
        instantiate_all: bool = False,
    ) -> None:
        if not agent_name:
            raise ValueError("an agent needs a name")
        config = nixl_conf or nixl_agent_config()
        self.name = agent_name
        self.notifs: dict[str, list[bytes]] = {}
        self.backends: dict[str, int] = {}
        self._captures_telemetry = config.capture_telemetry
        self._registered: dict[tuple[int, int, int], list[Region]] = {}
        self._changing = threading.Lock()
        self._bytes_per_s = 0.0
        for backend in config.backends:
            self.create_backend(backend)
        host = os.environ.get("KVFERRY_ADVERTISE_HOST")
        if host is not None:
            host = f"[{host}]:0" if ":" in host else f"{host}:0"
        try:
            self._engine = Engine(advertise=host)
        except Error as error:
            raise as_nixl(error) from error
        self._remotes = Remotes(agent_name, self._engine)
        self._messenger = _exchange.Messenger()
        answer = weakref.WeakMethod(self._answer)
        self._listener = _exchange.Listener(config.port, answer) if config.enable_listen else None
        #: The port on which metadata is listened for; None without that.
        self.listen_port = self._listener.port if self._listener is not None else None

    def __del__(self) -> None:
        # It may not even have been made.
        if (listener := getattr(self, "_listener", None)) is not None:
            listener.close()
        if (engine := getattr(self, "_engine", None)) is not None:
            engine.shutdown()
        for regions in getattr(self, "_registered", {}).values():
            for region in regions:
                region.unregister(0.0)

    # --- backends ---

    def get_plugin_list(self) -> list[str]:
        """What transfers can be carried by."""
        return list(_BACKENDS)

    def get_plugin_mem_types(self, backend: str) -> list[str]:
        """The kinds of memory that it carries."""
        return ["DRAM_SEG"] if backend in _BACKENDS else []

    def get_plugin_params(self, backend: str) -> dict[str, str]:
        """Its settings: `KVFERRY_TRANSPORT` and the engine's others are not set here."""
        return {}

    def get_backend_mem_types(self, backend: str) -> list[str]:
        return ["DRAM_SEG"] if backend in self.backends else []

    def get_backend_params(self, backend: str) -> dict[str, str]:
        return {}

    def create_backend(self, backend: str, initParams: dict[str, str] | None = None) -> None:
        """Has transfers carried by it: each name stands for the same engine."""
        if backend not in _BACKENDS:
            raise nixlNotFoundError(
                f"kvferry has no backend {backend!r}: {' or '.join(_BACKENDS)} (host memory, over TCP or "
                "between processes of one host)"
            )
        self.backends.setdefault(backend, len(self.backends) + 1)

    def _check_backends(self, backends: list[str] | None) -> None:
        for backend in backends or ():
            if backend not in self.backends:
                raise nixlNotFoundError(f"the agent has no backend {backend!r}: it has {list(self.backends)}")

    # --- memory ---

    def register_memory(
        self, reg_list: Any, mem_type: str | None = None, backends: list[str] | None = None
    ) -> nixlRegDList:
        """Shares memory with every agent, for as long as it is registered: all of the list, or none."""
        self._check_backends(backends)
        descs = self.get_reg_descs(reg_list, mem_type)
        _descs.check_host(descs.getType())
        rows = [descs[index][:3] for index in range(len(descs))]
        done: list[Region] = []
        try:
            for address, length, _ in rows:
                done.append(process_registry().register_address(address, length))
                done[-1].share("read_write")
        except (Error, ValueError) as error:
            for region in done:
                region.unregister(0.0)
            raise as_nixl(error) if isinstance(error, Error) else nixlInvalidParamError(str(error)) from error
        with self._changing:
            for row, region in zip(rows, done, strict=True):
                self._registered.setdefault(row, []).append(region)
        return descs

    def deregister_memory(self, dereg_list: nixlRegDList, backends: list[str] | None = None) -> None:
        """Takes memory back. Transfers that use it end; nothing touches it when this returns."""
        self._check_backends(backends)
        rows = [dereg_list[index][:3] for index in range(len(dereg_list))]
        regions = []
        with self._changing:
            for row in rows:
                if row not in self._registered:
                    raise nixlNotFoundError(f"[{row[0]:#x}, +{row[1]}) of device {row[2]} is not registered")
            for row in rows:
                held = self._registered.get(row)
                if held:
                    regions.append(held.pop())
                    if not held:
                        del self._registered[row]
        for region in regions:
            region.unregister(_PATIENCE_S)

    def query_memory(
        self, reg_list: Any, backend: str, mem_type: str | None = None
    ) -> list[dict[str, str] | None]:
        """For files and objects, of which there are none here."""
        if backend not in self.backends:
            raise ValueError(f"Backend '{backend}' not found. Available backends: {list(self.backends)}")
        raise nixlNotSupportedError("kvferry has no files or objects to query")

    # --- descriptor lists ---

    def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> nixlXferDList:
        """A list to transfer: of tuples (address, length, device), an array of such rows, or tensors."""
        return _descs.xfer_descs(descs, mem_type)

    def get_reg_descs(self, descs: Any, mem_type: str | None = None) -> nixlRegDList:
        """A list to register: of tuples (address, length, device, meta), an array of rows, or tensors."""
        return _descs.reg_descs(descs, mem_type)

    def get_remote_descs(self, descs: Any, mem_type: str | None = None) -> nixlRemoteDList:
        """A list of tuples (address, length, device, agent)."""
        if isinstance(descs, nixlRemoteDList):
            return descs
        return nixlRemoteDList(_descs.memory_type(mem_type), descs)

    def get_serialized_descs(self, descs: nixlXferDList | nixlRegDList) -> bytes:
        """A list's bytes, for another agent."""
        return _descs.serialize(descs)

    def deserialize_descs(self, serialized_descs: bytes) -> nixlXferDList | nixlRegDList:
        """The list of such bytes. Reading them runs nothing."""
        return _descs.deserialize(serialized_descs)

    # --- other agents ---

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
        with self._changing:
            registered = Descriptors.from_rows(list(self._registered))
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
        self._remotes.forget(_name(agent))

    def check_remote_metadata(self, agent: str | bytes, descs: nixlXferDList | None = None) -> bool:
        """Whether an agent is known and reached, and shares these ranges."""
        remote = self._remotes.find(_name(agent))
        if remote is None or not remote.is_there():
            return False
        return descs is None or remote.find(descs.descriptors) is None

    def make_connection(self, remote_agent: str | bytes, backends: list[str] | None = None) -> None:
        """Connects, if it is not connected any more."""
        self._check_backends(backends)
        remote = self._remotes.get(_name(remote_agent))
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
            if metadata.name != _name(remote_agent):
                raise ValueError(f"{metadata.name!r} answers, not {_name(remote_agent)!r}")
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

    # --- transfers ---

    def prep_xfer_dlist(
        self,
        agent_name: str | bytes,
        xfer_list: Any,
        mem_type: str | None = None,
        backends: list[str] | None = None,
    ) -> nixl_prepped_dlist_handle:
        """Prepares a list of this agent's memory ("NIXL_INIT_AGENT" or ""), or of another agent's. Rows of
        five are strided: address, length, device, stride, count."""
        self._check_backends(backends)
        strided = _descs.strided(xfer_list, mem_type)
        descs = strided if strided is not None else self.get_xfer_descs(xfer_list, mem_type)
        _descs.check_host(descs.getType())
        name = _name(agent_name)
        remote = None if name in ("", "NIXL_INIT_AGENT") else self._remotes.get(name)
        self._check_there(descs.descriptors, remote)
        # What is prepared stays as it is, whatever becomes of the list.
        kept = Descriptors.from_bytes(descs.descriptors.to_bytes())
        return nixl_prepped_dlist_handle(kept, remote)

    def make_prepped_xfer(
        self,
        operation: str,
        local_xfer_side: nixl_prepped_dlist_handle,
        local_indices: Any,
        remote_xfer_side: nixl_prepped_dlist_handle,
        remote_indices: Any,
        notif_msg: bytes | str = b"",
        backends: list[str] | None = None,
        skip_desc_merge: bool = False,
    ) -> nixl_xfer_handle:
        """A transfer of some of two prepared lists, by index."""
        self._check_backends(backends)
        remote = remote_xfer_side._remote
        if remote is None or local_xfer_side._remote is not None:
            raise nixlInvalidParamError("one list of this agent's memory and one of another's are needed")
        self.check_remote(remote)
        local, there = local_xfer_side.use(), remote_xfer_side.use()
        return self._handle(operation, (local, there, local_indices, remote_indices), remote, notif_msg)

    def initialize_xfer(
        self,
        operation: str,
        local_descs: nixlXferDList,
        remote_descs: nixlXferDList,
        remote_agent: str | bytes,
        notif_msg: bytes | str = b"",
        backends: list[str] | None = None,
    ) -> nixl_xfer_handle:
        """A transfer of two whole lists."""
        self._check_backends(backends)
        for descs in (local_descs, remote_descs):
            if not isinstance(descs, nixlXferDList):
                raise nixlInvalidParamError(f"a {type(descs).__name__} cannot be transferred")
            _descs.check_host(descs.getType())
        remote = self._remotes.get(_name(remote_agent))
        self._check_there(local_descs.descriptors, None)
        self._check_there(remote_descs.descriptors, remote)
        sides = (local_descs.descriptors, remote_descs.descriptors, None, None)
        return self._handle(operation, sides, remote, notif_msg)

    def _handle(
        self,
        operation: str,
        sides: tuple[Descriptors, Descriptors, Any, Any],
        remote: Remote,
        notif_msg: bytes | str,
    ) -> nixl_xfer_handle:
        way = _WAYS.get(operation)
        if way is None:
            raise nixlInvalidParamError(f"there is no operation {operation!r}: {', '.join(_WAYS)}")
        try:
            pairs = Pairs.of_descriptors(*sides)
        except (ValueError, IndexError, TypeError, OverflowError) as error:
            raise nixlInvalidParamError(str(error)) from error
        return nixl_xfer_handle(self, way, pairs, remote, _message(notif_msg))

    def transfer(self, handle: nixl_xfer_handle, notif_msg: bytes | str = b"") -> str:
        """Starts it: "PROC", or "DONE" where it has ended. What fails at once is raised here, and by
        `check_xfer_state`, too."""
        return self._state(handle.post(_message(notif_msg)))

    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """ "PROC" or "DONE"; raises why it failed."""
        return self._state(handle.ended())

    def _state(self, report: Report | None) -> str:
        if report is None:
            return "PROC"
        if report.bytes and report.elapsed > 0:
            self._bytes_per_s = report.bytes / report.elapsed
        return "DONE"

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> nixlXferTelemetry:
        """What a transfer took, that is done."""
        if not self._captures_telemetry:
            raise nixlNoTelemetryError("the agent's configuration has no capture_telemetry")
        return handle.telemetry()

    def estimate_xfer_cost(self, req_handle: nixl_xfer_handle) -> tuple[int, int, str]:
        """How long it may take in microseconds, how wrong that may be, and what it rests on: the last
        transfer that was looked at, where there was one."""
        rate = self._bytes_per_s or _BYTES_PER_S
        duration = int(req_handle.bytes / rate * 1e6)
        return duration, duration, "ANALYTICAL_BACKEND" if self._bytes_per_s else "UNKNOWN"

    def query_xfer_backend(self, handle: nixl_xfer_handle) -> str:
        """What carries it, by the name that was asked for."""
        return next(iter(self.backends), "")

    def release_xfer_handle(self, handle: nixl_xfer_handle) -> None:
        """Gives a transfer back; one under way is cancelled. Raises while its memory is still in use: call
        it again then."""
        handle.release()

    def release_dlist_handle(self, handle: nixl_prepped_dlist_handle) -> None:
        """Gives a prepared list back. Transfers that were made of it go on."""
        handle.release()

    def prep_mem_view(self, dlist: Any, *, backends: list[str] | None = None) -> int:
        """For kernels that transfer by themselves: not here."""
        raise nixlNotSupportedError("memory views are for GPU kernels: kvferry carries host memory only")

    def release_mem_view(self, mvh: int) -> None:
        """As `prep_mem_view`."""
        raise nixlNotSupportedError("memory views are for GPU kernels: kvferry carries host memory only")

    def check_remote(self, remote: Remote) -> None:
        """Raises where an agent was forgotten, or replaced, since it was looked up."""
        if self._remotes.find(remote.name) is not remote:
            raise nixlNotFoundError(f"agent {remote.name!r} was removed or replaced since this was prepared")

    def start(self, way: str, pairs: Pairs, remote: Remote, notification: bytes) -> Post:
        """Starts a transfer with another agent."""
        letter = _letters.closed(_KIND, self.name, notification) if notification else None
        try:
            return pairs.post(self._engine, remote.peer, way, notify=letter, owner=remote.incarnation)
        except Error as error:
            raise as_nixl(error) from error

    def _check_there(self, descriptors: Descriptors, remote: Remote | None) -> None:
        if remote is None:
            missing = descriptors.first_unregistered(process_registry())
        else:
            missing = remote.follow(descriptors)
        if missing is not None:
            address, length, _ = descriptors[missing]
            whose = "this agent" if remote is None else repr(remote.name)
            raise nixlNotFoundError(
                f"{whose} has not registered [{address:#x}, +{length}) (descriptor {missing})"
            )

    # --- notifications ---

    def send_notif(
        self, remote_agent_name: str | bytes, notif_msg: bytes | str, backend: str | None = None
    ) -> None:
        """Tells another agent something that belongs to no transfer. It goes its way by itself."""
        self._check_backends([backend] if backend is not None else None)
        remote = self._remotes.get(_name(remote_agent_name))
        nothing = Pairs.of_addresses([], [], [])
        letter = _letters.closed(_KIND, self.name, _message(notif_msg))
        try:
            post = nothing.post(self._engine, remote.peer, "write", notify=letter, owner=remote.incarnation)
            post.poll()
        except Error as error:
            raise as_nixl(error) from error

    def get_new_notifs(self, backends: list[str] | None = None) -> dict[str, list[bytes]]:
        """What other agents have said since the last call, by their names."""
        self._check_backends(backends)
        return self._collect({})

    def update_notifs(self, backends: list[str] | None = None) -> dict[str, list[bytes]]:
        """Adds what other agents have said to what is kept in `notifs`, and returns all of it."""
        self._check_backends(backends)
        self._collect(self.notifs)
        return self.notifs

    def check_remote_xfer_done(
        self,
        remote_agent_name: str | bytes,
        lookup_tag: bytes,
        backends: list[str] | None = None,
        tag_is_prefix: bool = True,
    ) -> bool:
        """Whether an agent has said something that begins with the tag, or holds it: the first such is
        taken out of `notifs`."""
        said = self.update_notifs(backends).get(_name(remote_agent_name), [])
        for message in said:
            if message.startswith(lookup_tag) if tag_is_prefix else lookup_tag in message:
                said.remove(message)
                return True
        return False

    def _collect(self, into: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
        while (came := self._engine.try_notification()) is not None:
            letter = _letters.opened(_KIND, came.message)
            if letter is None:
                logger.warning("a notification of another interface than NIXL's was dropped")
                continue
            name, message = letter
            into.setdefault(name, []).append(message)
        return into
