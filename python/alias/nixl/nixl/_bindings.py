"""As `kvferry.compat.nixl._bindings`."""

from kvferry.compat.nixl._bindings import *  # noqa: F403
