"""The name `nixl`, for programs that cannot be changed: everything in it is kvferry's."""

from kvferry.compat._alias import refuse_beside

refuse_beside("kvferry-as-nixl", "nixl")

from kvferry.compat.nixl import *  # noqa: E402, F403
