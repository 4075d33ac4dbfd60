"""How much memory there is, for what a run keeps there."""

import os
import pathlib
import re

import jax

_CGROUPS = pathlib.Path("/sys/fs/cgroup")


def of_device(device: jax.Device) -> int:
    """Bytes that a device can use, parameters and activations among them."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    # A CPU device does not say; the machine's memory is shared by all of them.
    return of_machine() // jax.local_device_count()


def of_machine() -> int:
    """Bytes that are available to this process: the machine's, or its cgroup's limit if lower."""
    try:
        meminfo = pathlib.Path("/proc/meminfo").read_text()
        machine = 1024 * int(re.search(r"MemAvailable: +(\d+) kB", meminfo)[1])
        groups = pathlib.Path("/proc/self/cgroup").read_text()
    except OSError:  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *cgroup_limits(groups)])


def cgroup_limits(groups: str, root: pathlib.Path = _CGROUPS) -> list[int]:
    """Limits of a process's cgroup and of those around it, in bytes; none where none is set.

    Args:
        groups: the content of /proc/self/cgroup.
        root: where cgroups (version 2) are mounted. In a container that is the container's own, in
            which the path in `groups` may be missing.
    """
    path = re.search(r"^0::/(.*)$", groups, re.MULTILINE)
    folder = root / path[1] if path else root
    limits = []
    for place in (folder, *folder.parents):
        file = place / "memory.max"
        if place.is_relative_to(root) and file.is_file():
            limits += [int(text) for text in [file.read_text().strip()] if text.isdigit()]
    return limits
