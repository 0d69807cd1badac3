"""Which vLLM the connectors were made for: they override methods that vLLM may change in any release."""

from __future__ import annotations

TESTED = "0.32"
"""The release whose connectors were read and are tested against."""


class UnsupportedVersionError(ImportError):
    """The vLLM that is installed is not the one that the connectors were made for."""


def check() -> None:
    """Raises `UnsupportedVersionError` where vLLM is of another release than `TESTED`."""
    if problem := complaint():
        raise UnsupportedVersionError(problem)


def complaint() -> str | None:
    """What is wrong with the vLLM that is installed, and what to do; None where nothing is."""
    import vllm

    found = vllm.__version__
    if found == TESTED or found.startswith(f"{TESTED}."):
        return None
    return (
        f"kvferry's connectors override vLLM {TESTED}, and this is vLLM {found}: "
        f"install vllm=={TESTED}.* or a kvferry that was made for this one"
    )
