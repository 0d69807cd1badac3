"""The interfaces of other engines, over kvferry: `kvferry.compat.mooncake` and `kvferry.compat.nixl`.

They are used by importing them from here. `docs/compat.md` says what differs, and how an unmodified program
is given them.
"""
