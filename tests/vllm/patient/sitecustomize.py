"""Has vLLM's processes sleep where they give way: put before others in `PYTHONPATH`, it is loaded by every
Python process that starts.

A worker of vLLM looks for its next step in a loop that gives way at each turn, for a second after each
step. The dozen processes of a few small servers on two cores so leave nothing to those that work, on Linux
6.18 for a minute at a time: the kernel reports starved threads, and requests run into their time limits.
"""

import os
import time

PAUSE_S = 0.0001


def rest() -> None:
    """In the place of `os.sched_yield`."""
    time.sleep(PAUSE_S)


os.sched_yield = rest
