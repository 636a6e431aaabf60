"""The probes that have to do a thing to know whether it works: run by ``probes`` as a process of its own.

It enters new network, mount, PID, IPC and UTS namespaces first, so that whatever it makes goes when it ends, and it uses
the very calls of an emulation. Prints one JSON object: name to [found, detail].
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import sys
from collections.abc import Callable

from kvfabric import _libc
from ocs_switch import light
from topo import links, observe, tc
from topo.emulated import HASH_SEED, ROUTER_SYSCTLS
from topo.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, attribute, raw_request
from topo.netns import Namespace, has_sysctl
from topo.shaping import PortShape, Queue

_A, _B = 101, 102
_MTU, _LIMIT = 9000, 200
_RATE_BPS = 25e6

Answer = tuple["bool | None", str]


def _namespaces() -> Answer:
    """Every kind that the sandbox needs. The PID namespace is tried in a child of its own, because once the first process
    of a new PID namespace has ended, whoever made it can fork no more, and nft has to be forked later."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(OSError):
            _libc.unshare(_libc.CLONE_NEWPID)
            inner = os.fork()  # the first process of the new PID namespace
            if inner == 0:
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
        os._exit(code)
    _, status = os.waitpid(child, 0)
    _libc.unshare(_libc.CLONE_NEWNET | _libc.CLONE_NEWNS | _libc.CLONE_NEWIPC | _libc.CLONE_NEWUTS)
    return os.waitstatus_to_exitcode(status) == 0, ""


def _veth(namespace: Namespace) -> Answer:
    ends = (links.VethEnd(namespace.fd, _A, "kvprobe0", None), links.VethEnd(namespace.fd, _B, "kvprobe1", None))
    namespace.netlink.apply([links.veth(*ends, mtu=_MTU, queue_length=_LIMIT)])
    namespace.netlink.apply([links.set_link(_A, "kvprobe0", up=True), links.set_link(_B, "kvprobe1", up=True)])
    return True, f"MTU {_MTU}"


def _shaped(namespace: Namespace, index: int, queue: Queue) -> Answer:
    shape = PortShape(_RATE_BPS, _MTU, queue, limit=_LIMIT)
    namespace.netlink.apply(tc.shape_requests(shape, index, "probe"))
    fault = tc.difference("probe", tc.expected(shape), tc.read(namespace.netlink, index))
    return fault is None, fault or ""


def _nexthops(namespace: Namespace) -> Answer:
    requests = [links.address(index, f"10.255.{index}.1/24", name="probe") for index in (_A, _B)]
    requests += [links.nexthop(index, index, f"10.255.{index}.2", name="probe") for index in (_A, _B)]
    requests += [links.nexthop_group(200, (_A, _B), name="probe"), links.route("10.254.0.0/16", name="probe", group=200)]
    namespace.netlink.apply(requests)
    return True, ""


def _multipath(namespace: Namespace) -> Answer:
    namespace.sysctl(ROUTER_SYSCTLS)
    return True, ""


def _nftables(namespace: Namespace) -> Answer:
    observe.count_flows(namespace)
    observe.flow_counts(namespace)
    return True, ""


def _shutter() -> Answer:
    reason = light.supported()
    return reason is None, reason or ""


def _qdisc(namespace: Namespace, kind: str) -> Answer:
    # On the loopback device, without options: a kind that is there may refuse that, but only an absent one is unknown.
    body = struct.pack("=BxxxiIII", 0, 1, 0x70000, 0xFFFFFFFF, 0) + attribute(1, kind.encode() + b"\0")
    try:
        namespace.netlink.apply([raw_request(tc.RTM_NEWQDISC, body, kind, flags=NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)])
    except OSError as error:
        return error.errno != errno.ENOENT, ""
    namespace.netlink.apply([raw_request(tc.RTM_DELQDISC, body, kind)])
    return True, ""


def _try(probe: Callable[[], Answer]) -> Answer:
    try:
        return probe()
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        return False, " ".join(str(error).split())[:200]


def main() -> int:
    """Probe and print. Exit code 0 whatever was found."""
    found: dict[str, Answer] = {"namespaces": _try(_namespaces)}
    if found["namespaces"][0]:
        namespace = Namespace("probe")
        probes: dict[str, Callable[[], Answer]] = {
            "veth": lambda: _veth(namespace),
            "htb": lambda: _shaped(namespace, _A, Queue.FIFO),
            "tc-bpf": lambda: _shaped(namespace, _B, Queue.FAIR),
            "nexthop-groups": lambda: _nexthops(namespace),
            "multipath-hash": lambda: _multipath(namespace),
            "nftables": lambda: _nftables(namespace),
            "multipath-seed": lambda: (has_sysctl(HASH_SEED), ""),
            "shutter": _shutter,
            "tcp-rto-min": lambda: (has_sysctl("net.ipv4.tcp_rto_min_us"), ""),
        }
        found.update({name: _try(probe) for name, probe in probes.items()})
        for kind in ("netem", "fq", "fq_codel", "cake", "red"):
            found[kind] = _try(lambda kind=kind: _qdisc(namespace, kind))  # type: ignore[misc]
        namespace.close()
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
