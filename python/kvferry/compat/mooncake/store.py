"""`MooncakeDistributedStore` as in `mooncake.store`, on a pool whose master is `kv-master`.

Calls return codes, as there; `last_error` and the log of this module say why. Memory is registered by
`register_buffer` before objects are put from it or got into it.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..._errors import Error, SettingError, StoreError
from ..._native import Descriptors, Engine, Lent, Region, Store, process_registry
from .._memory import Shared
from ._types import advertised, listening, rdma_devices, transport

__all__ = ["MooncakeDistributedStore", "ReplicaDescriptor", "ReplicateConfig"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PARAMETERS = -600
_CLOSED = -601
_ENGINE = -800


@dataclass
class ReplicateConfig:
    """How objects are put."""

    replica_num: int = 1
    with_soft_pin: bool = False
    soft_pin_ttl_ms: int = 30 * 60 * 1000
    with_hard_pin: bool = False
    preferred_segment: str = ""
    preferred_segments: list[str] = field(default_factory=list)
    group_ids: list[str] = field(default_factory=list)

    def options(self, count: int) -> dict[str, Any]:
        """As the store takes them, for so many keys. Of now: what is changed later does not count."""
        preferred = [name for name in (self.preferred_segment, *self.preferred_segments) if name]
        return {
            "replicas": self.replica_num,
            "preferred": preferred,
            "pinned": self.with_hard_pin,
            "soft_pin": self.soft_pin_ttl_ms / 1000 if self.with_soft_pin else 0.0,
            "groups": list(self.group_ids) if self.group_ids else [""] * count,
        }


class ReplicaDescriptor:
    """Where a replica of an object is: in memory, as all of a pool's are."""

    def is_memory_replica(self) -> bool:
        """It is."""
        return True

    def is_disk_replica(self) -> bool:
        """It is not."""
        return False

    def is_local_disk_replica(self) -> bool:
        """It is not."""
        return False


def _keep_to_itself(region: Region) -> None:
    """Memory that objects are put from is read by nobody else: this process writes and reads by itself."""


class MooncakeDistributedStore:
    """A process's part in a pool. Its methods can be called from any thread."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._store: Store | None = None
        self._lent: Lent | None = None
        self._memory = Shared(_keep_to_itself)
        # Held while it is set up or closed.
        self._changing = threading.Lock()
        #: Why the last call that failed did.
        self.last_error: str = ""

    # --- start and end ---

    def setup(
        self,
        local_hostname: str | Mapping[str, Any],
        metadata_server: str = "P2PHANDSHAKE",
        global_segment_size: int = 3355443200,
        local_buffer_size: int = 1073741824,
        protocol: str = "tcp",
        device_name: str = "",
        master_server_address: str = "127.0.0.1:50051",
        *,
        tenant_id: str = "",
    ) -> int:
        """Joins the pool, and lends it `global_segment_size` bytes, in the background; none where that
        is 0. 0, or a code. `local_buffer_size` is not needed, nor is a metadata server. All of it can be
        given by name in a dictionary."""
        if isinstance(local_hostname, Mapping):
            return self.setup(**local_hostname)

        def start() -> int:
            if self._store is not None:
                raise ValueError("the store is set up already")
            carrier = transport(protocol)
            engine = Engine(
                listen=listening(),
                advertise=advertised(local_hostname),
                transport=carrier,
                rdma_devices=rdma_devices(carrier, device_name),
            )
            try:
                store = Store(engine, master_server_address, host=local_hostname, tenant=tenant_id)
                if global_segment_size:
                    self._lent = store.lend(global_segment_size, local_hostname)
            except BaseException:
                engine.shutdown(0.0)
                raise
            self._engine, self._store = engine, store
            return 0

        with self._changing:
            return self._code("setup", start)

    def close(self) -> int:
        """Leaves the pool. What is called after it, or goes on meanwhile, fails. 0, or a code."""

        def end() -> int:
            store, self._store = self._store, None
            engine, self._engine = self._engine, None
            self._lent = None
            if store is None or engine is None:
                return 0
            try:
                store.close()
            finally:
                self._memory.close()
                engine.shutdown()
            return 0

        with self._changing:
            return self._code("close", end)

    @property
    def engine(self) -> Engine:
        """The engine by which objects are put and got."""
        if self._engine is None:
            raise _NotSetUp("the store is not set up, or is closed: call setup first")
        return self._engine

    def get_hostname(self) -> str:
        """The name of what this process lends: a put may prefer it."""
        return self._store.host if self._store is not None else socket.gethostname()

    def health_check(self) -> int:
        """0 where the master counts this process in; 1 where not, or before `setup`."""
        store = self._store
        return 0 if store is not None and store.status()["joined"] else 1

    # --- memory ---

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Lets objects be put from memory, and got into it. 0, or a code."""

        def register() -> int:
            self._memory.register([(buffer_ptr, buffer_ptr, size)])
            return 0

        return self._code("register_buffer", register)

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Takes it back: when this returns nothing touches it any more. 0, or a code."""

        def unregister() -> int:
            if self._memory.unregister([buffer_ptr]):
                raise ValueError(f"{buffer_ptr:#x} is not registered")
            return 0

        return self._code("unregister_buffer", unregister)

    # --- looking ---

    def is_exist(self, key: str) -> int:
        """1 where there is such an object, 0 where not, or a code."""
        return self.batch_is_exist([key])[0]

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """The same for each of many."""

        def exist() -> list[int]:
            return [self._result("exist", found) for found in self._running().exist(keys)]

        return self._codes("batch_is_exist", len(keys), exist)

    def get_size(self, key: str) -> int:
        """How many bytes an object has, or a code."""
        return self._code("get_size", lambda: self._running().size(key))

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        """On what kind of medium each object is that is there: one descriptor for all of its replicas."""
        found = self.batch_is_exist(keys)
        return {key: [ReplicaDescriptor()] for key, there in zip(keys, found, strict=True) if there == 1}

    # --- putting ---

    def put(self, key: str, value: bytes, config: ReplicateConfig | None = None) -> int:
        """Puts bytes. They are copied: `put_from` does without. 0, or a code."""
        return self.put_parts(key, value, config=config)

    def put_parts(self, key: str, *parts: bytes, config: ReplicateConfig | None = None) -> int:
        """Puts bytes, one part behind the other. 0, or a code."""

        def put() -> int:
            if not (value := b"".join(parts)):
                raise ValueError("no bytes cannot be put: give at least one")
            with process_registry().allocate(len(value)) as staged:
                staged.write(0, value)
                options = (config or ReplicateConfig()).options(1)
                (result,) = self._running().put_all([key], [staged.span(0, len(value))], **options)
            return self._result("put", result)

        return self._code("put", put)

    def put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        """Puts registered memory. 0, or a code."""
        return self.batch_put_from([key], [buffer_ptr], [size], config)[0]

    def batch_put_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Puts many objects, each of one range of registered memory: 0 or a code for each."""
        return self.batch_put_from_multi_buffers(
            keys, [[pointer] for pointer in buffer_ptrs], [[size] for size in sizes], config
        )

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Puts many objects, each of several ranges: 0 or a code for each. 0 also where it is there already,
        or somebody else is putting it; -200 where there is no room, after a short wait."""

        def put() -> list[int]:
            options = (config or ReplicateConfig()).options(len(keys))
            results = self._running().put_all(keys, _ranges(all_buffer_ptrs, all_sizes), **options)
            return [self._result("put", result) for result in results]

        return self._codes("batch_put_from_multi_buffers", len(keys), put)

    # --- getting ---

    def get(self, key: str) -> bytes:
        """An object's bytes; none where it is not there. They are copied: `get_into` does without."""

        def get() -> bytes:
            size = self._running().size(key)
            with process_registry().allocate(size) as staged:
                (got,) = self._running().get_all([key], [staged.span(0, size)])
                if isinstance(got, StoreError):
                    raise got
                return staged.read(0, got)

        return self._call("get", get, lambda code: b"")

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Gets an object into registered memory: how many bytes it has, or a code."""
        return self.batch_get_into([key], [buffer_ptr], [size])[0]

    def batch_get_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """Gets many objects, each into one range: how many bytes it has, or a code."""
        return self.batch_get_into_multi_buffers(
            keys, [[pointer] for pointer in buffer_ptrs], [[size] for size in sizes]
        )

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Gets many objects, each into several ranges, one filled after the other: how many bytes it has,
        or a code; what is in the ranges is undefined then. A key may come twice."""

        def get() -> list[int]:
            results = self._running().get_all(keys, _ranges(all_buffer_ptrs, all_sizes))
            return [self._result("get", result) for result in results]

        return self._codes("batch_get_into_multi_buffers", len(keys), get)

    # --- removing ---

    def remove(self, key: str, force: bool = False) -> int:
        """Removes an object. 0, or a code: -706 where it is being read or pinned, unless by force."""
        return self.batch_remove([key], force)[0]

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        """The same for each of many."""

        def remove() -> list[int]:
            return [self._result("remove", gone) for gone in self._running().remove(keys, force=force)]

        return self._codes("batch_remove", len(keys), remove)

    def remove_by_regex(self, regex: str, force: bool = False) -> int:
        """Removes objects in whose keys an expression is found: how many, or a code."""
        return self._code(
            "remove_by_regex", lambda: self._running().remove_matching(regex=regex, force=force)
        )

    def remove_all(self, force: bool = False) -> int:
        """Removes all objects of this tenant: how many. Raises where it is not known that all are gone: to
        whoever goes on with new weights, what is left would be wrong."""
        return self._running().remove_matching(force=force)

    # --- within ---

    def _running(self) -> Store:
        if (store := self._store) is None:
            raise _NotSetUp("the store is not set up, or is closed: call setup first")
        return store

    def _result(self, what: str, result: int | Error | None) -> int:
        if isinstance(result, Exception):
            return self._fail(what, result)
        return int(result or 0)

    def _codes(self, what: str, count: int, call: Callable[[], list[int]]) -> list[int]:
        return self._call(what, call, lambda code: [code] * count)

    def _code(self, what: str, call: Callable[[], int]) -> int:
        return self._call(what, call, lambda code: code)

    def _call(self, what: str, call: Callable[[], T], failed: Callable[[int], T]) -> T:
        try:
            return call()
        except (Error, ValueError) as error:
            return failed(self._fail(what, error))

    def _fail(self, what: str, error: Exception) -> int:
        self.last_error = f"{what}: {error}"
        logger.debug("%s", self.last_error)
        if isinstance(error, StoreError):
            return error.mooncake_code
        if isinstance(error, _NotSetUp):
            return _CLOSED
        return _PARAMETERS if isinstance(error, (SettingError, ValueError)) else _ENGINE


class _NotSetUp(ValueError):
    pass


def _ranges(pointers: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]) -> list[Descriptors]:
    """The memory of each object."""
    return [
        Descriptors.from_rows([(at, length, 0) for at, length in zip(*one, strict=True)])
        for one in zip(pointers, sizes, strict=True)
    ]
