"""What really crossed a router, counted per TCP flow by the kernel.

A dynamic nftables set counts packets and bytes per (source, destination, ports) in the forward path. nft has no netlink
library in Python that is kept as well as nft itself, so the ``nft`` command speaks, with its script on standard input.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass

from topo.netns import Namespace

FlowKey = tuple[str, str, int, int]
"""(source address, destination address, source port, destination port)."""

_TABLE = "kvfabric"
_RULES = f"""table ip {_TABLE} {{
  set flows {{
    type ipv4_addr . ipv4_addr . inet_service . inet_service
    size 1048576
    flags dynamic
  }}
  chain forward {{
    type filter hook forward priority 0; policy accept;
    meta l4proto tcp update @flows {{ ip saddr . ip daddr . tcp sport . tcp dport counter }}
  }}
}}
"""


class ObserveError(RuntimeError):
    """nft is missing or refused; the message carries its own words."""


@dataclass(frozen=True, slots=True)
class FlowCount:
    """Packets and bytes (of IP packets) of one direction of a flow through one router."""

    packets: int
    bytes: int


def _nft(namespace: Namespace, arguments: list[str], script: str | None = None) -> str:
    if shutil.which("nft") is None:
        raise ObserveError("the nft command is missing; install nftables")
    # nsenter, not a preexec_fn: that would copy this process's page tables each time, and could not be run by several threads.
    enter = ["nsenter", f"--net=/proc/self/fd/{namespace.fd}", "nft", *arguments]
    done = subprocess.run(enter, input=script, capture_output=True, text=True, timeout=60, pass_fds=(namespace.fd,), check=False)
    if done.returncode != 0:
        raise ObserveError(f"{namespace.name}: nft: {done.stderr.strip().splitlines()[0] if done.stderr else 'failed'}")
    return done.stdout


def count_flows(namespace: Namespace) -> None:
    """Start counting in a router. Raises ObserveError."""
    _nft(namespace, ["-f", "-"], _RULES)


def flow_counts(namespace: Namespace) -> dict[FlowKey, FlowCount]:
    """Everything counted so far in a router. Raises ObserveError."""
    listing = json.loads(_nft(namespace, ["-j", "list", "set", "ip", _TABLE, "flows"]))
    found: dict[FlowKey, FlowCount] = {}
    for entry in listing["nftables"]:
        for element in entry.get("set", {}).get("elem", ()):
            source, destination, sport, dport = element["elem"]["val"]["concat"]
            counter = element["elem"]["counter"]
            found[source, destination, int(sport), int(dport)] = FlowCount(counter["packets"], counter["bytes"])
    return found
