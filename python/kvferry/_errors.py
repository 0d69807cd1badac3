"""What goes wrong, by what can be done about it. The text of each says what failed, with whom and why."""


class Error(Exception):
    """Anything that an engine refuses or fails at."""

    #: Whether the same call may succeed later, with the same peer or one that has started again.
    retryable: bool = False
    #: Whether it was refused because too much is under way.
    backpressure: bool = False
    #: The number of the transfer that failed, where it got one.
    transfer: int | None = None
    #: The peer that it was with.
    peer: str | None = None
    #: What is known of the peer's memory when a write has failed: "untouched", "fenced" or "unknown".
    remote: str | None = None


class RegistrationError(Error):
    """Memory, a region or a layout cannot be had, registered or published."""


class RequestError(Error):
    """What was asked for fits neither side, or not the other."""


class SettingError(Error):
    """A setting or an address cannot work."""


class NotSharedError(Error):
    """The peer shares no such memory, or has published no such layout."""


class NotGrantedError(Error):
    """The peer has not granted this, or the ticket is none."""


class UnreachableError(Error):
    """The peer cannot be reached, or not in a way that is allowed."""


class PeerRestartedError(UnreachableError):
    """The peer was replaced: what was looked up of the one before does not count any more."""


class DeadlineError(Error, TimeoutError):
    """The transfer's deadline has passed."""


class CancelledError(Error):
    """The transfer was cancelled by its program."""


class RefusedError(Error):
    """The owner of the memory refused, or gave it up meanwhile."""


class ChecksumError(Error):
    """A slice arrived damaged."""


class MemoryGoneError(Error):
    """Memory of this process was unregistered, or cannot be touched."""


class ShutdownError(Error):
    """The engine is shut down."""


class BackpressureError(Error):
    """Too much is under way: the same call may succeed later."""


class ProtocolError(Error):
    """The peer broke the protocol."""


class StoreError(Error):
    """A pool's master or the owner of an object's memory refuses, or cannot be reached."""

    #: The number that Mooncake's store has for it.
    mooncake_code: int = -1


class BootstrapError(Error):
    """A bootstrap server cannot be reached, or refuses."""
