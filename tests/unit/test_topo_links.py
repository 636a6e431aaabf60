"""The messages packed by hand are those that pyroute2 would encode."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg

from topo import links
from topo.netlink import Request, attributes, request

pytestmark = pytest.mark.unit

INDICES = st.integers(1, 2**31 - 1)
ADDRESSES = st.ip_addresses(v=4).map(str)
MACS = st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":"))
NAMES = st.text("abcdefgh0123456789-", min_size=1, max_size=15)
ENDS = st.builds(links.VethEnd, st.integers(0, 2**20), INDICES, NAMES, st.none() | MACS)


def link_parts(data: bytes) -> tuple[Any, ...]:
    """A veth request as (type, flags, header, attributes of one end, of the other)."""
    length, kind, flags = struct.unpack_from("=IHH", data)
    body = data[16:]
    near = dict(attributes(body[16:]))
    info = dict(attributes(near.pop(18)))
    peer = dict(attributes(info[2]))[1]
    return length, kind, flags, body[:16], near, info[1], peer[:16], dict(attributes(peer[16:]))


def from_pyroute2(message: Any, fields: dict[str, Any], attrs: list[tuple[str, Any]], kind: int, *, replace: bool) -> Request:
    for name, value in fields.items():
        message[name] = value
    message["attrs"] = attrs
    return request(message, kind, "", create=True, replace=replace)


@given(ENDS, ENDS, st.integers(576, 65535), st.integers(1, 10_000))
def test_a_veth_pair(a: links.VethEnd, b: links.VethEnd, mtu: int, queue_length: int) -> None:
    def attrs(end: links.VethEnd) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = [("IFLA_IFNAME", end.name), ("IFLA_MTU", mtu), ("IFLA_TXQLEN", queue_length)]
        found.append(("IFLA_NET_NS_FD", end.namespace_fd))
        return found if end.mac is None else [*found, ("IFLA_ADDRESS", end.mac)]

    peer = {"index": b.index, "attrs": attrs(b)}
    info = {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", peer)]})]}
    theirs = from_pyroute2(ifinfmsg(), {"index": a.index}, [*attrs(a), ("IFLA_LINKINFO", info)], links.RTM_NEWLINK, replace=False)
    assert link_parts(links.veth(a, b, mtu=mtu, queue_length=queue_length).data) == link_parts(theirs.data)


@given(INDICES, ADDRESSES, st.integers(0, 32))
def test_an_address(index: int, ip: str, prefix: int) -> None:
    fields = {"family": 2, "prefixlen": prefix, "index": index}
    theirs = from_pyroute2(ifaddrmsg(), fields, [("IFA_LOCAL", ip), ("IFA_ADDRESS", ip)], links.RTM_NEWADDR, replace=True)
    assert links.address(index, f"{ip}/{prefix}", name="x").data == theirs.data


@given(INDICES, ADDRESSES, MACS)
def test_a_neighbour(index: int, ip: str, mac: str) -> None:
    fields = {"family": 2, "ifindex": index, "state": 0x80}
    theirs = from_pyroute2(ndmsg(), fields, [("NDA_DST", ip), ("NDA_LLADDR", mac)], links.RTM_NEWNEIGH, replace=True)
    assert links.neighbour(index, ip, mac, name="x").data == theirs.data


@given(INDICES, st.booleans())
def test_a_link_up_or_down(index: int, up: bool) -> None:
    message = ifinfmsg()
    message["index"], message["flags"], message["change"] = index, int(up), 1
    assert links.set_link(index, "x", up=up).data == request(message, links.RTM_NEWLINK, "").data
