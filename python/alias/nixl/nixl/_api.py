"""As `kvferry.compat.nixl._api`."""

from kvferry.compat.nixl._api import *  # noqa: F403
