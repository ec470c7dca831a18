"""Keeps threads busy with plain arithmetic until its input ends.

Run by ``neighbour`` as a program: _busy.py N_THREADS. It prints a line once all are at work.
"""

from __future__ import annotations

import hashlib
import sys
from threading import Barrier, Thread

BLOCK = bytes(2**16)  # stays in the cache, and is long enough to be hashed without Python's lock


def work(together: Barrier) -> None:
    together.wait()
    while True:
        hashlib.sha256(BLOCK)


if __name__ == "__main__":
    n_threads = int(sys.argv[1])
    together = Barrier(n_threads + 1)
    for _ in range(n_threads):
        Thread(target=work, args=(together,), daemon=True).start()
    together.wait()
    print("busy", flush=True)
    sys.stdin.read()
