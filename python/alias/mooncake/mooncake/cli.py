"""The command `mooncake_master`: starts `kv-master`, which understands the flags of Mooncake's."""

from kvferry.compat._alias import become


def main() -> None:
    """Becomes `kv-master`, with the arguments of this process."""
    become("kv-master")
