"""Awaiting what an engine has under way: it is looked at when its descriptor is readable."""

from __future__ import annotations

import asyncio
from typing import Any

from ._native import Pending


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def complete(pending: Pending[Any]) -> Any:
    """What comes of it. Cancelling this gives it up, and loses nothing."""
    loop = asyncio.get_running_loop()
    while (outcome := pending.poll()) is None:
        readable = loop.create_future()
        loop.add_reader(pending.fileno(), _wake, readable)
        try:
            await readable
        finally:
            loop.remove_reader(pending.fileno())
    return outcome[0]
