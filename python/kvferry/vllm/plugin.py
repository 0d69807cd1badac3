"""Names in vLLM's registry, as `kvferry_plugin` has them registered in every process of a server."""

from __future__ import annotations

import logging

from kvferry.vllm import CONNECTORS, versions

logger = logging.getLogger("vllm.kvferry")


def register(replace: bool) -> None:
    """Adds our names, and where asked to puts our classes behind vLLM's. May be called again.

    With another vLLM than ours there is nothing to register; that is an error where replacing was asked for,
    and one line in the log where the package just happens to be installed.
    """
    if problem := versions.complaint():
        if replace:
            raise versions.UnsupportedVersionError(problem)
        logger.warning("%s; its connectors are not registered", problem)
        return
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    for name in CONNECTORS:
        if replace or name.startswith("Kvferry"):
            # Registering a name twice is an error in vLLM, and an error in a plug-in ends the process.
            KVConnectorFactory._registry.pop(name, None)
            KVConnectorFactory.register_connector(name, "kvferry.vllm", name)
    if replace:
        logger.info("kvferry stands behind vLLM's connectors: %s", ", ".join(CONNECTORS))
