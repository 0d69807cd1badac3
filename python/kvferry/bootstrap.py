"""The bootstrap server, through which the workers of a prefill deployment are found: serving one, registering
with one, asking one. What it speaks is in the documentation of the crate `kvferry-engine`, module
`bootstrap`."""

from ._errors import BootstrapError
from ._native import BootstrapServer as Server
from ._native import Registration
from ._native import bootstrap_query as query

__all__ = ["BootstrapError", "Registration", "Server", "query"]
