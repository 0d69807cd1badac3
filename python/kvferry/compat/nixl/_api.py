"""`nixl_agent` as in `nixl._api`: the methods, their arguments, what they return and raise.

What is better here: completion and notifications depend on nobody polling; a transfer that is released under
way is cancelled for certain; memory is registered and taken back at any time, and other agents follow; every
method can be called from any thread; an agent that has started again is another, and no harm is done.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from ..._errors import Error
from ..._native import Descriptors, Engine, Pairs, Post, Region, RemoteGrant, Report, process_registry
from .. import _letters
from .._memory import Shared
from . import _descs
from ._bindings import DEFAULT_COMM_PORT, nixl_thread_sync_t, nixlXferTelemetry
from ._config import AgentName, advertised, message_of, name_of, nixl_agent_config
from ._descs import nixlRegDList, nixlRemoteDList, nixlXferDList
from ._errors import (
    as_nixl,
    nixlInvalidParamError,
    nixlNoTelemetryError,
    nixlNotFoundError,
    nixlNotSupportedError,
)
from ._handles import nixl_prepped_dlist_handle, nixl_xfer_handle
from ._introductions import Introductions
from ._remotes import Remote

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
# What a transfer is taken to move in a second before one was measured.
_BYTES_PER_S = 1e9


def _rows(descs: nixlRegDList) -> list[tuple[int, int, int]]:
    """What registrations are known by: what belongs to them does not count."""
    return [descs.descriptors[index] for index in range(len(descs))]


class nixl_agent(Introductions):
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
        # Held while what came is put there, or taken out.
        self._noting = threading.Lock()
        self.backends: dict[str, int] = {}
        self._captures_telemetry = config.capture_telemetry
        self._memory = Shared(self.open)
        self._bytes_per_s = 0.0
        for backend in config.backends:
            self.create_backend(backend)
        try:
            self._engine = Engine(advertise=advertised())
        except Error as error:
            raise as_nixl(error) from error
        super().__init__(agent_name, self._engine, config.port if config.enable_listen else None)

    @property
    def engine(self) -> Engine:
        """The engine under it."""
        return self._engine

    def __del__(self) -> None:
        # It may not even have been made.
        if (listener := getattr(self, "_listener", None)) is not None:
            listener.close()
        if (engine := getattr(self, "_engine", None)) is not None:
            engine.shutdown()
        if (memory := getattr(self, "_memory", None)) is not None:
            memory.close()

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
                f"kvferry has no backend {backend!r}: {' or '.join(_BACKENDS)} (host memory, over RDMA, TCP "
                "or between processes of one host)"
            )
        self.backends.setdefault(backend, len(self.backends) + 1)

    # --- memory ---

    def register_memory(
        self, reg_list: Any, mem_type: str | None = None, backends: list[str] | None = None
    ) -> nixlRegDList:
        """Shares memory with every agent, for as long as it is registered: all of the list, or none."""
        self._check_backends(backends)
        descs = self.get_reg_descs(reg_list, mem_type)
        _descs.check_host(descs.getType())
        try:
            self._memory.register([(row, row[0], row[1]) for row in _rows(descs)])
        except Error as error:
            raise as_nixl(error) from error
        except ValueError as error:
            raise nixlInvalidParamError(str(error)) from error
        return descs

    def open(self, region: Region) -> None:
        """Lets peers at what was registered: all of it, as NIXL does."""
        region.share("read_write")

    def deregister_memory(self, dereg_list: nixlRegDList, backends: list[str] | None = None) -> None:
        """Takes memory back. Transfers that use it end; nothing touches it when this returns."""
        self._check_backends(backends)
        if unknown := self._memory.unregister(_rows(dereg_list)):
            raise nixlNotFoundError(f"not registered: {unknown}")

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
        name = name_of(agent_name)
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
        remote = self._remotes.get(name_of(remote_agent))
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
        return nixl_xfer_handle(self, way, pairs, remote, message_of(notif_msg))

    def transfer(self, handle: nixl_xfer_handle, notif_msg: bytes | str = b"") -> str:
        """Starts it: "PROC", or "DONE" where it has ended. What fails at once is raised here, and by
        `check_xfer_state`, too."""
        return self._state(handle.post(message_of(notif_msg)))

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
            grant, owner = self.leave_of(remote), remote.incarnation
            return pairs.post(self._engine, remote.peer, way, notify=letter, owner=owner, grant=grant)
        except Error as error:
            raise as_nixl(error) from error

    def leave_of(self, remote: Remote) -> RemoteGrant | None:
        """By whose leave another agent's memory is touched: as it shares it with everybody."""
        return None

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
        remote = self._remotes.get(name_of(remote_agent_name))
        nothing = Pairs.of_addresses([], [], [])
        letter = _letters.closed(_KIND, self.name, message_of(notif_msg))
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
        with self._noting:
            return self._collect(self.notifs)

    def check_remote_xfer_done(
        self,
        remote_agent_name: str | bytes,
        lookup_tag: bytes,
        backends: list[str] | None = None,
        tag_is_prefix: bool = True,
    ) -> bool:
        """Whether an agent has said something that begins with the tag, or holds it: the first such is
        taken out of `notifs`."""
        self._check_backends(backends)
        with self._noting:
            said = self._collect(self.notifs).get(name_of(remote_agent_name), [])
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
