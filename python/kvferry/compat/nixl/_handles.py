"""Prepared lists and transfers, as the agent hands them out."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import TYPE_CHECKING

from ..._errors import Error
from ..._native import Descriptors, Pairs, Post, Report
from ._bindings import nixlXferTelemetry
from ._errors import (
    as_nixl,
    nixlBackendError,
    nixlNotFoundError,
    nixlNotPostedError,
    nixlRemoteDisconnectError,
    nixlRepostActiveError,
)

if TYPE_CHECKING:
    from ._api import nixl_agent
    from ._remotes import Remote

logger = logging.getLogger(__name__)

# How long a release waits for a cancelled transfer to be fenced before it says that it is not.
_FENCE_S = 0.05


class nixl_prepped_dlist_handle:
    """A prepared list: of this agent's memory, or of another's."""

    __slots__ = ("_descriptors", "_released", "_remote")

    def __init__(self, descriptors: Descriptors, remote: Remote | None) -> None:
        self._descriptors = descriptors
        self._remote = remote
        self._released = False

    def __repr__(self) -> str:
        whose = "local" if self._remote is None else self._remote.name
        return f"nixl_prepped_dlist_handle({whose}, {len(self._descriptors)}, released={self._released})"

    def release(self) -> None:
        self._released = True

    def use(self) -> Descriptors:
        """The list, unless it was released."""
        if self._released:
            raise nixlNotFoundError("the prepared list was released")
        return self._descriptors


class nixl_xfer_handle:
    """A transfer: it can be posted again when it has ended."""

    def __init__(
        self, agent: nixl_agent, way: str, pairs: Pairs, remote: Remote, notification: bytes
    ) -> None:
        self._agent = agent
        self._way = way
        self._pairs = pairs
        self._remote = remote
        self._notification = notification
        self._post: Post | None = None
        self._begun = 0.0
        self._released = False
        self._cancelled = False
        self._posting = threading.Lock()

    def __repr__(self) -> str:
        return f"nixl_xfer_handle({self._way}, {len(self._pairs)} with {self._remote.name!r})"

    def post(self, notification: bytes) -> Report | None:
        """Starts it. What it came to, where it has ended at once."""
        with self._posting:
            self._check_there()
            if self._is_active():
                raise nixlRepostActiveError(
                    "the transfer is still under way: post it again when it has ended"
                )
            if notification:
                self._notification = notification
            self._agent.check_remote(self._remote)
            self._begun = time.monotonic()
            self._post = self._agent.start(self._way, self._pairs, self._remote, self._notification)
        return self.ended()

    def ended(self) -> Report | None:
        """What it came to; None while it is under way. Raises why it failed, each time."""
        self._check_there()
        if self._post is None:
            raise nixlNotPostedError("the transfer was not posted yet")
        try:
            return self._post.poll()
        except Error as error:
            raise as_nixl(error) from error

    def telemetry(self) -> nixlXferTelemetry:
        report = self.ended()
        if self._post is None or report is None:
            raise nixlNotPostedError("the transfer has not ended yet")
        return nixlXferTelemetry(
            startTime=int(self._begun * 1e6),
            postDuration=int(self._post.posting * 1e6),
            xferDuration=int(report.elapsed * 1e6),
            totalBytes=report.bytes,
            descCount=report.descriptors,
        )

    @property
    def bytes(self) -> int:
        """How many it moves."""
        return self._pairs.bytes

    def release(self) -> None:
        """Gives it back. One under way is cancelled: this raises while its end is not certain, and can be
        called again; and once where it ended and nobody knows what the other agent's memory holds."""
        if self._released:
            return
        if self._post is not None:
            was_active = self._is_active()
            if was_active:
                self._cancelled = True
                self._post.cancel()
            try:
                self._post.wait(_FENCE_S)
            except TimeoutError as error:
                if self._is_active():
                    raise nixlBackendError(
                        "the transfer was cancelled and is not fenced yet: its memory is still in use, "
                        "release it again"
                    ) from error
            except Error as error:
                self._end_released(error)
        self._released = True
        self._post = None

    def _end_released(self, error: Error) -> None:
        if self._cancelled and self._way == "write" and error.remote == "unknown":
            self._released = True
            self._post = None
            raise nixlRemoteDisconnectError(
                f"{error}: what {self._remote.name!r} has of it is for that agent to fence. "
                "Nothing of it is in use here any more"
            ) from error

    def _is_active(self) -> bool:
        if self._post is None:
            return False
        try:
            return self._post.poll() is None
        except Error:
            return False

    def _check_there(self) -> None:
        if self._released:
            raise nixlNotFoundError("the transfer was released")

    def __del__(self) -> None:
        # It may not even have been made. At the interpreter's end all engines end, and with them this.
        post = getattr(self, "_post", None)
        if post is not None and not sys.is_finalizing() and self._is_active():
            logger.warning("%r was dropped under way: it is cancelled", self)
            post.cancel()
