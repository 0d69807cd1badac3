"""Names in vLLM's registry. vLLM calls `register` in every process of a server, through `kvferry_plugin`."""

from __future__ import annotations

import logging
import os

from kvferry.vllm import versions

OWN = (
    "KvferryMooncakeConnector",
    "KvferryMooncakeStoreConnector",
    "KvferryNixlPullConnector",
    "KvferryNixlPushConnector",
)
REPLACED = (
    "MooncakeConnector",
    "MooncakeStoreConnector",
    "NixlConnector",
    "NixlPullConnector",
    "NixlPushConnector",
)

logger = logging.getLogger("vllm.kvferry")


def register() -> None:
    """Adds our names, and with ``KVFERRY_REPLACE=1`` puts our classes behind vLLM's. May be called again.

    With another vLLM than ours there is nothing to register; that is an error where replacing was asked for,
    and one line in the log where the package just happens to be installed.
    """
    replace = wants_replacing()
    if problem := versions.complaint():
        if replace:
            raise versions.UnsupportedVersionError(problem)
        logger.warning("%s; its connectors are not registered", problem)
        return
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    for name in (*OWN, *(REPLACED if replace else ())):
        # Registering a name twice is an error in vLLM, and an error in a plug-in ends the process.
        KVConnectorFactory._registry.pop(name, None)
        KVConnectorFactory.register_connector(name, "kvferry.vllm", name)
    if replace:
        logger.info("kvferry stands behind %s", ", ".join(REPLACED))


def wants_replacing() -> bool:
    """What ``KVFERRY_REPLACE`` says. Anything but 0, 1 or nothing is an error: a server must not start with
    the other."""
    value = os.environ.get("KVFERRY_REPLACE", "")
    if value not in ("", "0", "1"):
        raise ValueError(
            f"KVFERRY_REPLACE is {value!r}: set it to 1 to put kvferry behind vLLM's connectors, or to 0"
        )
    return value == "1"
