"""As `kvferry.compat.mooncake.store`."""

from kvferry.compat.mooncake.store import MooncakeDistributedStore, ReplicateConfig

__all__ = ["MooncakeDistributedStore", "ReplicateConfig"]
