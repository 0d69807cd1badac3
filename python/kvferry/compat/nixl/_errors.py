"""NIXL's exceptions, and which of them an error of the engine is."""

from __future__ import annotations

from ..._errors import (
    CancelledError,
    DeadlineError,
    Error,
    MemoryGoneError,
    NotGrantedError,
    NotSharedError,
    RefusedError,
    RegistrationError,
    RequestError,
    SettingError,
    UnreachableError,
)


class nixlNotPostedError(Exception):
    """The transfer was not posted yet."""


class nixlInvalidParamError(Exception):
    """An argument makes no sense, or not here."""


class nixlBackendError(Exception):
    """The engine failed at it."""


class nixlNotFoundError(Exception):
    """An agent, memory or a list is not known, or not any more."""


class nixlMismatchError(Exception):
    """Two things do not belong together."""


class nixlNotAllowedError(Exception):
    """It is not allowed, or not now."""


class nixlRepostActiveError(Exception):
    """The transfer is still under way: it can be posted again when it has ended."""


class nixlUnknownError(Exception):
    """Something else went wrong."""


class nixlNotSupportedError(Exception):
    """There is no such thing here."""


class nixlRemoteDisconnectError(Exception):
    """The other agent is gone, or cannot be reached."""


class nixlCancelledError(Exception):
    """The transfer was cancelled."""


class nixlNoTelemetryError(Exception):
    """The agent was not told to capture telemetry."""


# The first that fits counts.
_CLASSES: list[tuple[type[Error], type[Exception]]] = [
    (UnreachableError, nixlRemoteDisconnectError),
    (DeadlineError, nixlRemoteDisconnectError),
    (CancelledError, nixlCancelledError),
    (NotSharedError, nixlNotFoundError),
    (MemoryGoneError, nixlNotFoundError),
    (RefusedError, nixlNotFoundError),
    (NotGrantedError, nixlNotAllowedError),
    (RequestError, nixlInvalidParamError),
    (SettingError, nixlInvalidParamError),
    (RegistrationError, nixlInvalidParamError),
]


def as_nixl(error: Error) -> Exception:
    """The same as NIXL's agent would say it."""
    for ours, theirs in _CLASSES:
        if isinstance(error, ours):
            return theirs(str(error))
    return nixlBackendError(str(error))
