"""Moves KV-cache blocks between the processes that serve language models.

    import kvferry

    registry = kvferry.process_registry()
    with kvferry.Engine(listen="[::]:7001") as engine, registry.allocate(1 << 30) as cache:
        layer = cache.layout(64 << 10)
        layer.publish("layer.0")
        cache.share("read")

        prefill = engine.connect("prefill-0:7001")
        remote = prefill.layout("layer.0")
        prefill.read(remote.blocks([9, 1, 2]), layer.blocks([3, 17, 4]), notify=b"req-42").wait()

Everything that waits can be waited for on a thread, without the interpreter's lock, or be awaited.
`kvferry.compat` has the interfaces of Mooncake's transfer engine and of NIXL's agent.
"""

import atexit
import os

from ._errors import (
    BackpressureError,
    CancelledError,
    ChecksumError,
    DeadlineError,
    Error,
    MemoryGoneError,
    NotGrantedError,
    NotSharedError,
    PeerRestartedError,
    ProtocolError,
    RefusedError,
    RegistrationError,
    RequestError,
    SettingError,
    ShutdownError,
    StoreError,
    UnreachableError,
)
from ._native import (
    Blocks,
    Engine,
    Grant,
    Layout,
    Lent,
    MetricFamily,
    Notification,
    Peer,
    Region,
    Registry,
    RemoteBlocks,
    RemoteGrant,
    RemoteLayout,
    RemoteRegion,
    RemoteSpan,
    Report,
    Span,
    Store,
    Transfer,
    __version__,
    log_to_stderr,
    metric_families,
    process_registry,
    shut_down_all,
)

__all__ = [
    "BackpressureError",
    "Blocks",
    "CancelledError",
    "ChecksumError",
    "DeadlineError",
    "Engine",
    "Error",
    "Grant",
    "Layout",
    "Lent",
    "MemoryGoneError",
    "MetricFamily",
    "NotGrantedError",
    "NotSharedError",
    "Notification",
    "Peer",
    "PeerRestartedError",
    "ProtocolError",
    "RefusedError",
    "Region",
    "RegistrationError",
    "Registry",
    "RemoteBlocks",
    "RemoteGrant",
    "RemoteLayout",
    "RemoteRegion",
    "RemoteSpan",
    "Report",
    "RequestError",
    "SettingError",
    "ShutdownError",
    "Span",
    "Store",
    "StoreError",
    "Transfer",
    "UnreachableError",
    "__version__",
    "log_to_stderr",
    "metric_families",
    "process_registry",
    "shut_down_all",
]

# Memory of the interpreter goes with it: before that, nothing may touch it any more.
atexit.register(shut_down_all)

if _filter := os.environ.get("KVFERRY_LOG"):
    log_to_stderr(_filter)
