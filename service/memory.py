"""What the C library does with freed memory: it keeps it, for the next run to use.

A forward allocates the same blocks each time. By default glibc hands them back to the system in
between, and every page of them is cleared and mapped again in the next run: at GPT-2's size ten
thousand page faults, about 4 % of the time. Knows nothing of models.
"""

from __future__ import annotations

import ctypes
import platform

# glibc's malloc.h. 32 MiB is the largest threshold that it takes: larger blocks are mapped alone.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MAPPED_FROM = 32 << 20
_KEPT = 512 << 20


def keep_freed_memory() -> bool:
    """Blocks under 32 MiB stay with this process once freed, up to 512 MiB at the heap's end, and
    all threads share them. False where the C library is another than glibc: nothing is changed."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = (
        (_M_MMAP_THRESHOLD, _MAPPED_FROM),
        (_M_TRIM_THRESHOLD, _KEPT),
        (_M_ARENA_MAX, 1),
    )
    return all(mallopt(name, value) == 1 for name, value in settings)
