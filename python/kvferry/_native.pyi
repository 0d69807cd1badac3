"""The compiled part of kvferry. Sizes and offsets are in bytes, times in seconds."""

import builtins
from collections.abc import Awaitable, Generator, Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, Self, TypeAlias, TypedDict, TypeVar, Unpack, final

from typing_extensions import Buffer

from ._errors import StoreError

T = TypeVar("T")

class Array(Protocol):
    """What arrays have, whose buffers checkers of older Pythons do not know of."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...

class Tensor(Protocol):
    """What is used of a tensor."""

    @property
    def device(self) -> Any: ...
    def data_ptr(self) -> int: ...
    def numel(self) -> int: ...
    def element_size(self) -> int: ...
    def is_contiguous(self) -> bool: ...

class Settings(TypedDict, total=False):
    """Settings of an engine; what is None is as if it were not there. `docs/` of the crate
    `kvferry-engine` (`EngineBuilder`) has each, with its default."""

    listen: str | None
    lane_listen: str | None
    advertise: str | None
    lane_advertise: str | None
    run_directory: str | PathLike[str] | None
    #: "auto", "tcp", "local" or "rdma".
    transport: str | None
    #: Names of the RDMA adapters that are used, separated by commas; None: as the environment says, or all
    #: that can be.
    rdma_devices: str | None
    io_threads: int | None
    bulk_lanes: int | None
    small_bytes: int | None
    slice_bytes: int | None
    open_transfers: int | None
    notifications: int | None
    spin: float | None
    connect_timeout: float | None
    idle_after: float | None
    #: After how long a silent peer is asked for a sign of life, and after how long it counts as dead.
    liveness: tuple[float, float] | None

class EngineStatus(TypedDict):
    peers: int
    open_transfers: int
    lanes_opened: int
    lanes_accepted: int
    refused_requests: int

class PeerStatus(TypedDict):
    incarnation: int | None
    transport: str | None
    open_transfers: int
    open_lanes: int
    stale_answers: int

class StoreStatus(TypedDict):
    joined: bool
    recovering: bool
    lent_bytes: int
    objects: int
    used_bytes: int

__version__: str

def process_registry() -> Registry:
    """The registry of this process: what engines serve that were not given another. A process needs
    one: memory that is registered twice with a device is pinned twice."""

def shut_down_all() -> None:
    """Ends every store and every engine of this process. The interpreter does this before it ends."""
@final
class MetricFamily:
    """What engines count under one name, told apart by labels. Counters get Prometheus' `_total`."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Literal["counter", "gauge"]: ...
    @property
    def help(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def series(self) -> list[tuple[str, ...]]:
        """The values of the labels of all that are there from the start, at zero."""

def metric_families() -> list[MetricFamily]:
    """All that engines count: `Engine.metrics` has the values."""

def log_to_stderr(filter: str) -> bool:
    """Writes what the engine logs to standard error ("info", "kvferry_engine=debug"). False when
    something else takes the log already."""
@final
class Registry:
    """The owner of a process's regions and grants."""

    def __new__(cls) -> Self: ...
    def allocate(self, length: int) -> Region:
        """Allocates and registers memory of the engine's own, which other processes of this host can
        read in place. `memoryview(region)` and `numpy.frombuffer(region)` are views of it."""

    def register(self, memory: Memory, *, access: Access = "read_write") -> Region:
        """Registers the memory of a writable contiguous buffer (`bytearray`, `numpy.ndarray`,
        `mmap.mmap`) or of a contiguous tensor in host memory. Nothing is copied; the object is kept
        alive while the region is registered."""

    def register_address(
        self, address: int, length: int, *, owner: object = None, access: Access = "read_write"
    ) -> Region:
        """Registers memory by address. It must stay mapped, readable and writable until the region is
        unregistered: `owner` is kept alive that long."""

    def register_dmabuf(
        self, fd: int, address: int, length: int, *, offset: int = 0, access: Access = "read_write"
    ) -> Region:
        """Registers memory of a device by a dma-buf of it: `length` bytes from `offset` of it on, which
        the program knows by `address`. The descriptor is duplicated. RDMA adapters reach it, and nothing
        else does: `read`, `write` and other transports are errors. The memory stays allocated until the
        region is unregistered."""

    def read_at(self, address: int, length: int) -> bytes:
        """Copies bytes out of the region that covers them."""

    def write_at(self, address: int, bytes: bytes) -> None:
        """Copies bytes into the region that covers the place."""

    def withdraw(self, name: str) -> bool:
        """Withdraws a published layout. Whether there was one of this name."""

    @property
    def region_count(self) -> int: ...
    @property
    def grant_count(self) -> int: ...

@final
class Region:
    """A registered range. Peers may touch none of it before it is shared or granted. Leaving a `with`
    unregisters it."""

    @property
    def id(self) -> str: ...
    @property
    def address(self) -> int: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def registered(self) -> bool: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def read(self, offset: int, length: int) -> bytes: ...
    def write(self, offset: int, bytes: bytes) -> None: ...
    def share(self, access: Access) -> None:
        """Grants every peer this access to the whole region until it is unregistered."""

    def span(self, offset: int, length: int) -> Span: ...
    def whole(self) -> Span: ...
    def layout(
        self, block_bytes: int, count: int | None = None, *, stride: int | None = None, offset: int = 0
    ) -> Layout:
        """A view of it as blocks, as many as there is room for where no count is given."""

    def unregister(self, patience: float = 1.0) -> list[int]:
        """Takes it back: when this returns nothing touches the memory any more, unless the same range is
        registered elsewhere, too. Waits for transfers that use it; the numbers of those that did not end
        in time, and were cut, are returned."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Span:
    """A range of a region. It does not keep the region registered."""

    @property
    def offset(self) -> int: ...
    def __len__(self) -> int: ...
    def part(self, offset: int, length: int) -> Span: ...

@final
class Layout:
    """A view on a region as blocks. It does not keep the region registered."""

    @property
    def block_bytes(self) -> int: ...
    def __len__(self) -> int:
        """How many blocks there are."""

    def blocks(self, indices: Indices) -> Blocks: ...
    def narrow(self, offset: int, length: int) -> Layout:
        """The same blocks, of which only these bytes count."""

    def publish(self, name: str) -> None:
        """Tells peers of it, until it is withdrawn or its region is unregistered. Permits nothing."""

@final
class Blocks:
    """Blocks of a layout, in order."""

@final
class RemoteLayout:
    """A layout that a peer has published."""

    @property
    def block_bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def blocks(self, indices: Indices) -> RemoteBlocks: ...
    def narrow(self, offset: int, length: int) -> RemoteLayout: ...

@final
class RemoteBlocks:
    """Blocks of a peer's layout, in order."""

@final
class RemoteRegion:
    """A region that a peer shares."""

    @property
    def id(self) -> str: ...
    @property
    def slot(self) -> int: ...
    @property
    def address(self) -> int: ...
    def __len__(self) -> int: ...
    def span(self, offset: int, length: int) -> RemoteSpan: ...
    def whole(self) -> RemoteSpan: ...

@final
class RemoteSpan:
    """A range of a peer's region."""

    def __len__(self) -> int: ...
    def part(self, offset: int, length: int) -> RemoteSpan: ...

@final
class Engine:
    """A process's end of everything. It runs on threads of its own, and can be used from any thread.
    Leaving a `with` shuts it down."""

    def __new__(cls, registry: Registry | None = None, **settings: Unpack[Settings]) -> Self: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def registry(self) -> Registry: ...
    def peer(self, address: str) -> Peer:
        """The engine at an address, without connecting to it."""

    def connect(self, address: str, timeout: float | None = None) -> Peer:
        """Connects; returns when everything that the peer shared by then is known here."""

    def connect_async(self, address: str) -> Pending[Peer]: ...
    def grant(
        self, spans: Span | Descriptors | Sequence[Span | Descriptors], peer: int, access: Access, ttl: float
    ) -> Grant:
        """Grants the incarnation `peer` access to spans of this process, for a time."""

    def try_notification(self) -> Notification | None: ...
    def next_notification(self, timeout: float | None = None) -> Notification:
        """Waits for one. Raises `TimeoutError`."""

    def next_notification_async(self) -> Pending[Notification]: ...
    def status(self) -> EngineStatus: ...
    def metrics(self) -> dict[tuple[str, ...], int]:
        """What it has counted since its start, and holds now: of each series, named by its family
        (`metric_families`) and the values of its labels, the value."""

    def count(
        self,
        direction: Literal["sent", "received"],
        transport: str | None = None,
        done: int | None = None,
    ) -> None:
        """Counts a transfer that only the program knows as one: what peers have written here, by a
        protocol of the program's. `done` says how many bytes it had, unless it failed."""

    def fallbacks(self) -> dict[str, str]:
        """The peers that are reached by another transport than the best that is allowed, and why."""

    def shutdown(self, patience: float = 0.5) -> None:
        """Ends everything: transfers fail, fenced where peers answer in time."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Store:
    """A process's part in a pool: it puts and gets objects of memory that is registered with its engine, and
    lends memory for those of everybody. It can be used from any thread; leaving a `with` closes it.

    Batches end one by one: for each key a result, or a `StoreError` that is not raised."""

    def __new__(
        cls,
        engine: Engine,
        master: str,
        *,
        host: str | None = None,
        tenant: str = "",
        patience: float = 10.0,
    ) -> Self:
        """Joins the pool whose master is at HOST:PORT, within `patience` seconds. Replicas on hosts of the
        same name as this one are read before others."""

    @property
    def host(self) -> str: ...
    def for_tenant(self, tenant: str) -> Store:
        """The same store, as another tenant uses it. Closing one closes both."""

    def put_all(
        self,
        keys: Sequence[str],
        sources: Sequence[Span | Descriptors | Sequence[Span | Descriptors]],
        *,
        replicas: int = 1,
        preferred: Sequence[str] = [],
        pinned: bool = False,
        soft_pin: float = 0.0,
        groups: Sequence[str] | None = None,
        checksum: bool = False,
    ) -> list[StoreError | None]:
        """Puts objects, each of the bytes of its source, one range behind the other. One that is there
        already, or is being written, is left as it is, and that is no error."""

    def get_all(
        self,
        keys: Sequence[str],
        targets: Sequence[Span | Descriptors | Sequence[Span | Descriptors]],
        *,
        verify: bool = False,
    ) -> list[int | StoreError]:
        """Gets objects into their targets: how many bytes each has. What is in the target of one that
        failed is undefined."""

    def exist(self, keys: Sequence[str]) -> list[bool | StoreError]:
        """Which are there. What is found is kept for a while, so that it can be got."""

    def size(self, key: str) -> int:
        """How many bytes an object has."""

    def remove(self, keys: Sequence[str], *, force: bool = False) -> list[StoreError | None]:
        """Removes objects; without `force` those stay that are being read, or are pinned."""

    def remove_matching(
        self, *, prefix: str | None = None, regex: str | None = None, force: bool = False
    ) -> int:
        """Removes this tenant's objects whose keys begin so, or in whose keys the expression is found, or
        all of them: how many were removed."""

    def lend(self, bytes: int, name: str) -> Lent:
        """Lends memory as a segment of this name, which `preferred` of a put means. It is populated and
        mounted in the background, and stays lent until it is unmounted, or the store closed."""

    def status(self) -> StoreStatus: ...
    def close(self, grace: float = 0.0) -> None:
        """Leaves the pool: what reads from memory that was lent here may go on for `grace` seconds."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Lent:
    """Memory that is lent to a pool."""

    @property
    def state(self) -> str:
        """ "populating", "mounting", "mounted", "not mounted" or "unmounted"."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is in the pool, or raises what keeps it from that. False after `timeout`."""

    def unmount(self, grace: float = 0.0) -> None:
        """Takes it back: when this returns, nobody touches it any more."""

@final
class Peer:
    """A remote engine. It outlives the process there: the next use finds the new one."""

    @property
    def address(self) -> str: ...
    @property
    def incarnation(self) -> int | None:
        """Who it is, while it is reached."""

    @property
    def not_local(self) -> str | None:
        """Why transfers go over the network, though the short cut of one host is allowed."""

    @property
    def not_rdma(self) -> str | None:
        """Why transfers go over TCP, though RDMA is allowed: nobody has it, or it has failed."""

    def ready(self, timeout: float | None = None) -> None:
        """Connects if need be; returns when everything that it shared by then is known here."""

    def ready_async(self) -> Pending[None]: ...
    def layout(self, name: str) -> RemoteLayout: ...
    def layout_names(self) -> list[str]: ...
    def regions(self) -> list[RemoteRegion]: ...
    def find(self, address: int, length: int) -> RemoteRegion: ...
    def write(
        self,
        local: Local,
        remote: Remote,
        *,
        notify: bytes | None = None,
        deadline: float | None = None,
        checksum: bool = False,
        grant: RemoteGrant | None = None,
    ) -> Transfer:
        """Pushes, pair by pair. The notification is delivered after the data is in place."""

    def read(
        self,
        remote: Remote,
        local: Local,
        *,
        notify: bytes | None = None,
        deadline: float | None = None,
        checksum: bool = False,
        grant: RemoteGrant | None = None,
    ) -> Transfer:
        """Pulls, pair by pair."""

    def notify(self, message: bytes, *, deadline: float | None = None) -> Transfer: ...
    def status(self) -> PeerStatus: ...

@final
class Transfer(Awaitable[Report]):
    """A transfer under way. Dropping it cancels it without waiting."""

    @property
    def id(self) -> int: ...
    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""

    def poll(self) -> Report | None:
        """What it did, or None while it is under way. Raises why it failed."""

    def wait(self, timeout: float | None = None) -> Report:
        """Blocks until it has ended, at its deadline at the latest. `TimeoutError` that is not a
        `DeadlineError`: it goes on."""

    def cancel(self) -> None:
        """Asks for it to end. What is awaited or waited for then says whether the peer's memory is
        fenced."""

    def detach(self) -> None:
        """Lets it go on without this object."""

    def __await__(self) -> Generator[Any, Any, Report]: ...

@final
class Report:
    """What a transfer that is done did."""

    @property
    def transfer(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def pairs(self) -> int: ...
    @property
    def descriptors(self) -> int: ...
    @property
    def slices(self) -> int: ...
    @property
    def repeated_slices(self) -> int: ...
    @property
    def transport(self) -> str: ...
    @property
    def elapsed(self) -> float: ...

@final
class Grant:
    """A permission that one peer has. Dropping it, or leaving a `with`, revokes it."""

    @property
    def id(self) -> int: ...
    @property
    def ticket(self) -> bytes:
        """What to hand to the peer's program: `RemoteGrant(ticket)` reads it."""

    @property
    def remaining(self) -> float: ...
    def revoke(self) -> None:
        """When this returns nothing more can land, or be taken, under it."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class RemoteGrant:
    """A permission that a peer gave."""

    def __new__(cls, ticket: bytes) -> Self: ...
    @staticmethod
    def named(owner: int, id: int, access: Access) -> RemoteGrant:
        """A grant of which no more is known than its name. What it covers is left to the owner to check."""

    @property
    def id(self) -> int: ...
    @property
    def owner(self) -> int: ...
    @property
    def remaining(self) -> float: ...

@final
class BootstrapServer:
    """A bootstrap server on a thread of its own. Leaving a `with` shuts it down."""

    def __new__(cls, listen: str) -> Self:
        """Serves at ``HOST:PORT``, port 0 for any. Raises `kvferry.Error` where that is taken."""

    @property
    def address(self) -> str: ...
    @property
    def port(self) -> int: ...
    def shutdown(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Registration:
    """A worker's registration with a bootstrap server, renewed in the background until it is released."""

    def __new__(
        cls,
        server: str,
        *,
        engine_id: str,
        rank: tuple[int, int, int],
        address: str,
        incarnation: int,
        lease: float,
        sizes: tuple[int | None, int | None, int | None] = ...,
    ) -> Self:
        """Begins to register, and returns. Ranks and sizes are data, tensor and pipeline parallel; `address`
        is ``tcp://HOST:PORT``; `lease` is in seconds."""

    def wait(self, timeout: float) -> None:
        """Waits until it is registered. Raises `kvferry.bootstrap.BootstrapError`."""

    def release(self) -> None:
        """Ends the renewals: the server forgets the worker when the lease is over."""

@final
class Notification:
    """What a peer said."""

    @property
    def sender(self) -> int:
        """The incarnation of its engine."""

    @property
    def transfer(self) -> int: ...
    @property
    def message(self) -> bytes: ...

@final
class Pending(Generic[T]):
    """Something under way that a task can await, once."""

    def poll(self) -> tuple[T] | None: ...
    def fileno(self) -> int: ...
    def __await__(self) -> Generator[Any, Any, T]: ...

# --- for kvferry.compat: transfers of addresses ---

@final
class Descriptors:
    """Ranges of memory: address, length and device of each, in order."""

    def __new__(cls) -> Self: ...
    @staticmethod
    def from_rows(rows: Any) -> Descriptors: ...
    @staticmethod
    def from_strided(rows: Any) -> Descriptors: ...
    @staticmethod
    def from_bytes(bytes: bytes) -> Descriptors: ...
    def to_bytes(self) -> bytes: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[int, int, int]: ...
    def append(self, address: int, length: int, device: int) -> None: ...
    def remove(self, index: int) -> None: ...
    def clear(self) -> None: ...
    def index(self, address: int, length: int, device: int) -> int | None: ...
    def total_bytes(self) -> int: ...
    def first_outside(self, other: Descriptors) -> int | None:
        """The first that no one range of `other` covers."""

    def first_unregistered(self, registry: Registry) -> int | None: ...
    def first_unshared(self, peer: Peer) -> int | None: ...

@final
class Pairs:
    """Ranges of this process and of a peer's, pair by pair."""

    @staticmethod
    def of_addresses(local: Any, remote: Any, lengths: Any) -> Pairs: ...
    @staticmethod
    def of_descriptors(
        local: Descriptors, remote: Descriptors, local_indices: Any = None, remote_indices: Any = None
    ) -> Pairs: ...
    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def post(
        self,
        engine: Engine,
        peer: Peer,
        way: str,
        *,
        notify: builtins.bytes | None = None,
        owner: int | None = None,
        deadline: float | None = None,
        grant: RemoteGrant | None = None,
    ) -> Post:
        """Starts a transfer that follows what the peer shares: where the copy of its table is behind, it
        catches up and is submitted once more, whether anybody polls or not. `owner` is the incarnation
        whose addresses they are."""

@final
class Post:
    """A transfer of addresses under way. Dropping it does not end it."""

    def poll(self) -> Report | None: ...
    def wait(self, timeout: float | None = None) -> Report: ...
    def cancel(self) -> None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def posting(self) -> float: ...

# --- names for what is given ---

Access: TypeAlias = Literal["read", "write", "read_write"]
#: Indices of blocks: an array of 32 or 64-bit integers is taken as it is.
Indices: TypeAlias = Iterable[int] | Buffer | Array
Memory: TypeAlias = Buffer | Array | Tensor
#: A side of a transfer: all of a list, one after the other.
Local: TypeAlias = Span | Blocks | Descriptors | Sequence[Span | Blocks | Descriptors]
Remote: TypeAlias = (
    RemoteSpan
    | RemoteBlocks
    | Descriptors
    | RemoteGrant
    | Sequence[RemoteSpan | RemoteBlocks | Descriptors | RemoteGrant]
)

def bootstrap_query(server: str, timeout: float = 30.0) -> str:
    """Who has registered with a bootstrap server, as the JSON of its answer. Waits for a table that is
    incomplete."""
