"""kvferry's plug-in of vLLM, as vLLM loads it in every process of a server.

A package of its own, which needs nothing: what goes wrong as a plug-in is imported vLLM logs, and goes on
with its own connectors. What goes wrong as it is called ends the process.
"""

from __future__ import annotations

import logging
import os

logger = logging.getLogger("vllm.kvferry")


def wants_replacing() -> bool:
    """What ``KVFERRY_REPLACE`` says. Anything but 0, 1 or nothing is an error: a server must not start with
    the other."""
    value = os.environ.get("KVFERRY_REPLACE", "")
    if value not in ("", "0", "1"):
        raise ValueError(
            f"KVFERRY_REPLACE is {value!r}: set it to 1 to put kvferry behind vLLM's connectors, or to 0"
        )
    return value == "1"


def register() -> None:
    """Registers kvferry's connectors. Where kvferry cannot be imported, that is an error if
    ``KVFERRY_REPLACE`` asks for them, and a line in the log where the package just happens to be
    installed."""
    replace = wants_replacing()
    try:
        from kvferry.vllm import plugin
    except Exception as error:
        if replace:
            raise RuntimeError(
                f"KVFERRY_REPLACE is set, and kvferry cannot be imported ({error}): "
                "install its wheel again, or unset the variable to run vLLM's own connectors"
            ) from error
        logger.warning("kvferry cannot be imported (%s); its connectors are not registered", error)
        return
    plugin.register(replace)
