"""Interfaces, addresses, neighbours and routes as netlink requests.

What a fabric sends by the hundred is packed here: pyroute2 takes 0.2 to 0.4 ms to encode a message, a third of the bring-up of
128 hosts. A test holds these bytes against those of pyroute2, which encodes the rest.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from topo.netlink import (
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    NetlinkSocket,
    Request,
    attribute,
    attributes,
    raw_request,
    request,
)

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_GETROUTE = 24, 26
RTM_NEWNEIGH = 28
RTM_NEWNEXTHOP = 104
IFF_UP = 1
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_TXQLEN, _IFLA_LINKINFO = 1, 3, 4, 13, 18
_IFLA_STATS64, _IFLA_GROUP, _IFLA_NET_NS_FD, _IFLA_GSO_MAX_SEGS = 23, 27, 28, 40
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_NESTED = 0x8000
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_NDA_DST, _NDA_LLADDR = 1, 2
_NUD_PERMANENT = 0x80
_RTA_DST, _RTA_SRC, _RTA_IIF, _RTA_OIF, _RTA_IP_PROTO, _RTA_SPORT, _RTA_DPORT = 1, 2, 3, 4, 27, 28, 29
_RTA_GATEWAY, _RTA_NH_ID = 5, 30
_TABLE_MAIN, _UNICAST = 254, 1
_ONLINK = 4
_NHA_ID, _NHA_GROUP, _NHA_OIF, _NHA_GATEWAY = 1, 2, 5, 6
_CREATE = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
_REPLACE = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
_SCOPE_LINK = 253
_PROTO_STATIC = 4


@dataclass(frozen=True, slots=True)
class VethEnd:
    """One end of a veth pair: where it lives (a namespace's descriptor), and how it starts."""

    namespace_fd: int
    index: int
    name: str
    mac: str | None


def veth(a: VethEnd, b: VethEnd, *, mtu: int, queue_length: int, segments: int | None = None) -> Request:
    """Make a veth pair with each end already in its namespace, with its index, MAC, MTU and txqueuelen.

    ``segments`` is the most that TCP may hand to an end as one packet; None leaves the kernel's 65,535.
    """

    def attrs(end: VethEnd) -> bytes:
        common = (
            attribute(_IFLA_IFNAME, end.name.encode() + b"\0")
            + attribute(_IFLA_MTU, struct.pack("=I", mtu))
            + attribute(_IFLA_TXQLEN, struct.pack("=I", queue_length))
            + attribute(_IFLA_NET_NS_FD, struct.pack("=I", end.namespace_fd))
        )
        if segments is not None:
            common += attribute(_IFLA_GSO_MAX_SEGS, struct.pack("=I", segments))
        return common if end.mac is None else common + attribute(_IFLA_ADDRESS, _mac_bytes(end.mac))

    peer = attribute(_VETH_INFO_PEER, _ifinfo(b.index) + attrs(b))
    info = attribute(_IFLA_INFO_KIND, b"veth\0") + attribute(_IFLA_INFO_DATA | _NESTED, peer)
    body = _ifinfo(a.index) + attrs(a) + attribute(_IFLA_LINKINFO | _NESTED, info)
    return raw_request(RTM_NEWLINK, body, f"link {a.name} - {b.name}", flags=_CREATE)


def _ifinfo(index: int, flags: int = 0, change: int = 0) -> bytes:
    return struct.pack("=BBHiII", 0, 0, 0, index, flags, change)


def _mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def set_link(index: int, name: str, *, up: bool | None = None, mac: str | None = None, new_name: str | None = None) -> Request:
    """Change a link in place: up or down, another MAC, another name."""
    if mac is None and new_name is None:  # what every port of a fabric goes through
        state = (0, 0) if up is None else (IFF_UP if up else 0, IFF_UP)
        return raw_request(RTM_NEWLINK, _ifinfo(index, *state), f"change {name}")
    message = ifinfmsg()
    message["index"] = index
    if up is not None:
        message["flags"], message["change"] = (IFF_UP if up else 0), IFF_UP
    message["attrs"] = [
        *([("IFLA_ADDRESS", mac)] if mac else []),
        *([("IFLA_IFNAME", new_name)] if new_name else []),
    ]
    return request(message, RTM_NEWLINK, f"change {name}")


def delete_link(index: int, name: str) -> Request:
    """Remove an interface (and its veth peer)."""
    message = ifinfmsg()
    message["index"] = index
    return request(message, RTM_DELLINK, f"remove {name}")


def group(index: int, name: str, number: int) -> Request:
    """Make an interface one of a group, so that ``delete_group`` can remove them all together."""
    return raw_request(RTM_NEWLINK, _ifinfo(index) + attribute(_IFLA_GROUP, struct.pack("=I", number)), f"group of {name}")


def delete_group(number: int) -> Request:
    """Remove every interface of a group (and the veth peers) at once: one by one each would wait for the kernel."""
    return raw_request(RTM_DELLINK, _ifinfo(0) + attribute(_IFLA_GROUP, struct.pack("=I", number)), f"remove group {number}")


def link_state(netlink: NetlinkSocket, index: int) -> tuple[bool, str | None, int]:
    """(up, MAC, MTU) of an interface. Raises NetlinkError when there is none."""
    body = netlink.get(raw_request(RTM_GETLINK, struct.pack("=BBHiII", 0, 0, 0, index, 0, 0), f"interface {index}", flags=0))
    flags = struct.unpack_from("=I", body, 8)[0]
    found = dict(attributes(body[16:]))
    mac = ":".join(f"{byte:02x}" for byte in found[1]) if 1 in found else None
    return bool(flags & IFF_UP), mac, int(struct.unpack("=I", found[4])[0])


def segment_limits(netlink: NetlinkSocket) -> dict[int, int]:
    """The most segments that TCP may hand to each interface of a namespace as one packet, by index."""
    found = {}
    for body in netlink.dump(RTM_GETLINK, _ifinfo(0)):
        limit = dict(attributes(body[16:])).get(_IFLA_GSO_MAX_SEGS)
        if limit is not None:
            found[int(struct.unpack_from("=i", body, 4)[0])] = int(struct.unpack("=I", limit)[0])
    return found


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """Totals of an interface since it was made: what it received and sent, in frames and bytes."""

    rx_packets: int
    tx_packets: int
    rx_bytes: int
    tx_bytes: int


def link_counters(netlink: NetlinkSocket) -> dict[int, LinkCounters]:
    """Counters of every interface of a namespace, by index."""
    found = {}
    for body in netlink.dump(RTM_GETLINK, _ifinfo(0)):
        statistics = dict(attributes(body[16:])).get(_IFLA_STATS64)
        if statistics is not None:
            found[int(struct.unpack_from("=i", body, 4)[0])] = LinkCounters(*struct.unpack_from("=4Q", statistics))
    return found


def address(index: int, cidr: str, *, name: str) -> Request:
    """Give an interface an IPv4 address."""
    ip, _, prefix = cidr.partition("/")
    local = socket.inet_aton(ip)
    body = struct.pack("=BBBBI", socket.AF_INET, int(prefix), 0, 0, index)
    body += attribute(_IFA_LOCAL, local) + attribute(_IFA_ADDRESS, local)
    return raw_request(RTM_NEWADDR, body, f"{name}: address {cidr}", flags=_REPLACE)


def remove_address(index: int, cidr: str, *, name: str) -> Request:
    """Take an IPv4 address away from an interface."""
    ip, _, prefix = cidr.partition("/")
    body = struct.pack("=BBBBI", socket.AF_INET, int(prefix), 0, 0, index) + attribute(_IFA_LOCAL, socket.inet_aton(ip))
    return raw_request(RTM_DELADDR, body, f"{name}: remove address {cidr}")


def addresses(netlink: NetlinkSocket, index: int) -> list[str]:
    """The IPv4 addresses of an interface, each with its prefix length."""
    found = []
    for body in netlink.dump(RTM_GETADDR, struct.pack("=BBBBI", socket.AF_INET, 0, 0, 0, 0)):
        family, prefix, _flags, _scope, owner = struct.unpack_from("=BBBBI", body)
        if (family, owner) == (socket.AF_INET, index):
            found.append(f"{socket.inet_ntoa(dict(attributes(body[8:]))[_IFA_LOCAL])}/{prefix}")
    return found


def neighbour(index: int, ip: str, mac: str, *, name: str) -> Request:
    """A permanent neighbour entry."""
    body = struct.pack("=BxxxiHBB", socket.AF_INET, index, _NUD_PERMANENT, 0, 0)
    body += attribute(_NDA_DST, socket.inet_aton(ip)) + attribute(_NDA_LLADDR, _mac_bytes(mac))
    return raw_request(RTM_NEWNEIGH, body, f"{name}: neighbour {ip}", flags=_REPLACE)


def nexthop(identity: int, index: int, gateway: str, *, name: str) -> Request:
    """A nexthop object: a gateway behind an interface."""
    body = (
        struct.pack("=BBBBI", socket.AF_INET, 0, _PROTO_STATIC, 0, 0)
        + attribute(_NHA_ID, struct.pack("=I", identity))
        + attribute(_NHA_OIF, struct.pack("=I", index))
        + attribute(_NHA_GATEWAY, socket.inet_aton(gateway))
    )
    return raw_request(RTM_NEWNEXTHOP, body, f"{name}: nexthop {gateway}", flags=_CREATE)


def nexthop_group(identity: int, members: Sequence[int], *, name: str) -> Request:
    """A hash-threshold group of equal members."""
    group = b"".join(struct.pack("=IBBH", member, 0, 0, 0) for member in members)
    body = (
        struct.pack("=BBBBI", socket.AF_UNSPEC, 0, _PROTO_STATIC, 0, 0)
        + attribute(_NHA_ID, struct.pack("=I", identity))
        + attribute(_NHA_GROUP, group)
    )
    return raw_request(RTM_NEWNEXTHOP, body, f"{name}: nexthop group of {len(members)}", flags=_CREATE)


def route(prefix: str, *, name: str, index: int | None = None, gateway: str | None = None, group: int | None = None,
          onlink: bool = False) -> Request:  # fmt: skip
    """A route through an interface, a gateway, or a nexthop object (``group``)."""
    ip, _, length = prefix.partition("/")
    scope = 0 if gateway or group is not None else _SCOPE_LINK
    flags = _ONLINK if onlink else 0
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, int(length), 0, 0, _TABLE_MAIN, _PROTO_STATIC, scope, _UNICAST, flags)
    if int(length):
        body += attribute(_RTA_DST, socket.inet_aton(ip))
    if group is not None:
        body += attribute(_RTA_NH_ID, struct.pack("=I", group))
    if gateway:
        body += attribute(_RTA_GATEWAY, socket.inet_aton(gateway))
    if index is not None:
        body += attribute(_RTA_OIF, struct.pack("=I", index))
    return raw_request(RTM_NEWROUTE, body, f"{name}: route {prefix}", flags=_REPLACE)


def lookup(netlink: NetlinkSocket, *, iif: int, source: str, destination: str, sport: int, dport: int) -> int:
    """The interface by which a forwarded TCP packet leaves: the kernel's own answer, hash included.

    Raises NetlinkError when there is no route.
    """
    body = (
        struct.pack("=BBBBBBBBI", socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0)
        + attribute(_RTA_DST, socket.inet_aton(destination))
        + attribute(_RTA_SRC, socket.inet_aton(source))
        + attribute(_RTA_IIF, struct.pack("=I", iif))
        + attribute(_RTA_IP_PROTO, struct.pack("=B", socket.IPPROTO_TCP))
        + attribute(_RTA_SPORT, struct.pack(">H", sport))
        + attribute(_RTA_DPORT, struct.pack(">H", dport))
    )
    answer = netlink.get(raw_request(RTM_GETROUTE, body, f"route {source}:{sport} > {destination}:{dport}", flags=0))
    return int(struct.unpack("=I", dict(attributes(answer[12:]))[_RTA_OIF])[0])
