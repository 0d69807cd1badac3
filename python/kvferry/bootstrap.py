"""The bootstrap server, through which the workers of a prefill deployment are found: serving one, registering
with one, asking one. What it speaks is in the documentation of the crate `kvferry-engine`, module
`bootstrap`."""

import json
from dataclasses import dataclass, field

from ._errors import BootstrapError
from ._native import BootstrapServer as Server
from ._native import Registration
from ._native import bootstrap_query as query

__all__ = ["BootstrapError", "Listed", "Registration", "Server", "listing", "query"]


@dataclass
class Listed:
    """A prefill engine, as a bootstrap server knows it."""

    engine_id: str
    workers: dict[int, dict[int, str]]
    """The address of each worker, by its tensor parallel and its pipeline parallel rank."""
    incarnations: dict[str, int] = field(default_factory=dict)
    """Of each address its incarnation; 0 where it gave none, as workers of others do."""


def listing(server: str, timeout: float = 30.0) -> list[Listed]:
    """The prefill engines that a bootstrap server knows, of this kind or another."""
    engines = []
    for entry in json.loads(query(server, timeout)).values():
        workers = {
            int(tp): {int(pp): address for pp, address in stages.items()}
            for tp, stages in entry["worker_addr"].items()
        }
        given = entry.get("incarnation", {})
        incarnations = {
            address: given.get(tp, {}).get(pp, 0)
            for tp, stages in entry["worker_addr"].items()
            for pp, address in stages.items()
        }
        engines.append(Listed(entry["engine_id"], workers, incarnations))
    return engines
