"""What a user reads when the machine refuses a sandbox: two lines, what is wrong and what to do."""

from __future__ import annotations

import errno
import os


class SandboxError(Exception):
    """The sandbox could not be made or entered. ``str()`` is two lines: what is wrong, what to do about it."""


def refused(doing: str, error: OSError) -> SandboxError:
    """The two lines for ``error``, met while ``doing`` something ("making namespaces")."""
    reason = error.strerror or str(error)
    if error.errno in (errno.EPERM, errno.EACCES):
        if os.geteuid() != 0:
            return SandboxError(
                "kvfabric needs root for an emulation: it builds the network in namespaces of its own\n"
                "run the same command with sudo, or in the project's VM (vagrant up)"
            )
        return SandboxError(
            f"this machine refuses {doing} even to root ({reason}); it looks like a container\n"
            "start the container with --privileged, or run kvfabric on the host or in the project's VM"
        )
    if error.errno == errno.ENOSPC:
        return SandboxError(
            f"{doing} failed: the kernel's limit on namespaces is reached\n"
            "raise the limits in /proc/sys/user/max_*_namespaces, or end other sandboxes"
        )
    if error.errno == errno.EINVAL:
        return SandboxError(
            f"{doing} failed ({reason}): this kernel lacks a kind of namespace that kvfabric needs\n"
            "use a kernel with PID, network, mount, IPC and UTS namespaces, as Debian's and Ubuntu's are"
        )
    return SandboxError(f"{doing} failed: {reason}\nrun kvfabric doctor to see what this machine lacks")
