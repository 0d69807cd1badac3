"""For the distributions that give kvferry's interfaces the names of other engines' packages."""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib.metadata import distribution, distributions
from typing import NoReturn


def refuse_beside(alias: str, genuine: str) -> None:
    """Raises where the genuine package, or a variant of it, is installed, too: the two share files, and
    nobody knows whose are left."""
    for found in distributions():
        name = re.sub(r"[-_.]+", "-", found.metadata["Name"] or "").lower()
        if name == genuine or name.startswith(f"{genuine}-"):
            raise ImportError(
                f"{name} and {alias} are both installed, and share the files of one package: "
                f"uninstall both, then install the one that you mean"
            )


def become(command: str) -> NoReturn:
    """Runs a command of the wheel in this process's place, with its arguments, environment and signals.

    It is looked for where the wheel was installed to, then on the path: a user's own installation is often
    not on it.
    """
    installed = (file.locate() for file in distribution("kvferry").files or () if file.name == command)
    places = [str(place) for place in installed if os.access(str(place), os.X_OK)]
    path = next(iter(places), None) or shutil.which(command)
    if path is None:
        sys.exit(f"{command} is not there: it comes with the wheel of kvferry, so install that again")
    os.execv(path, [command, *sys.argv[1:]])
