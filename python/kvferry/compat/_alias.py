"""For the distributions that give kvferry's interfaces the names of other engines' packages."""

from __future__ import annotations

import re
from importlib.metadata import distributions


def refuse_beside(alias: str, genuine: str) -> None:
    """Raises where the genuine package, or a variant of it, is installed, too: the two share files, and
    nobody knows whose are left."""
    for distribution in distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if name == genuine or name.startswith(f"{genuine}-"):
            raise ImportError(
                f"{name} and {alias} are both installed, and share the files of one package: "
                f"uninstall both, then install the one that you mean"
            )
