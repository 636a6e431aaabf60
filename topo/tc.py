"""Shaping put on ports over netlink, and read back.

The messages that shape a port differ only in the interface index, so they are encoded once per shape and patched: a port
with 64 flow classes takes one send. The fair queue is an HTB whose leaf classes are chosen by (sport + dport) mod classes,
in classic BPF; all classes share the port's rate by deficit round robin with a quantum of one frame.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from topo.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NetlinkSocket, Request, attribute, attributes, raw_request
from topo.shaping import ETHERNET_HEADER, TCP_IP_HEADERS, PortShape, Queue

RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTCLASS, RTM_GETTCLASS = 40, 42
RTM_NEWTFILTER, RTM_GETTFILTER = 44, 46
_TCA_KIND, _TCA_OPTIONS, _TCA_STATS2 = 1, 2, 7
_TCA_HTB_PARMS, _TCA_HTB_INIT, _TCA_HTB_RATE64, _TCA_HTB_CEIL64 = 1, 2, 6, 7
_TCA_BPF_CLASSID, _TCA_BPF_OPS_LEN, _TCA_BPF_OPS = 3, 4, 5
_TC_H_ROOT = 0xFFFFFFFF
_LINKLAYER_ETHERNET = 1
_HANDLE = 0x50000
_ROOT_CLASS = _HANDLE | 1
_DEFAULT_MINOR = 0xF
_FIRST_FLOW_MINOR = 0x10
_TICK_NS = 64
"""The kernel's packet-scheduler tick (PSCHED_SHIFT 6): a burst is given to HTB as the time it takes at the rate."""
_ACK_BYTES = ETHERNET_HEADER + TCP_IP_HEADERS
"""Bytes of a frame without payload; one with SACK blocks, or a SYN, is 8 to 36 bytes longer."""
_OWN_RATE_BPS = 1
"""A flow class's own rate; what it gets beyond that it borrows, which is what the round robin shares out. HTB lets a class send
by its own right even while the port's bucket is overdrawn, so that right is as small as can be: a frame a minute."""


@dataclass(frozen=True, slots=True)
class ClassState:
    """One HTB class as the kernel has it: its parent, and its parameters byte for byte with the 64-bit rates behind them."""

    parent: int
    parameters: bytes


@dataclass(frozen=True, slots=True)
class PortState:
    """The shaping of a port as read back: qdisc kinds by handle, classes, and the programs of the root's filters."""

    qdiscs: Mapping[int, str]
    classes: Mapping[int, ClassState]
    filters: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PortCounters:
    """Totals of a shaped port since it was made: bytes and packets sent, packets dropped, bytes waiting now.

    ``free_packets`` of the packets were segments without payload that passed beside the shaper.
    """

    bytes: int
    packets: int
    drops: int
    backlog: int
    free_packets: int = 0

    @property
    def shaped_bytes(self) -> int:
        """Bytes that counted against the rate. The kernel knows the free packets by number only, and counts them a moment
        before their bytes: between two readings this can fall by a few frames of 66 bytes."""
        return self.bytes - self.free_packets * _ACK_BYTES


def _ratespec(rate_Bps: int) -> bytes:
    return struct.pack("=BBHhHI", 0, _LINKLAYER_ETHERNET, 0, 0, 0, min(rate_Bps, 0xFFFFFFFF))


def _ticks(size: int, rate_Bps: int) -> int:
    return min(0xFFFFFFFF, max(1, size * 1_000_000_000 // rate_Bps // _TICK_NS))


def _class_parameters(rate_Bps: int, ceil_Bps: int, bucket: int, shape: PortShape) -> bytes:
    buffer, cbuffer = _ticks(bucket, rate_Bps), _ticks(shape.buffer, ceil_Bps)
    return _ratespec(rate_Bps) + _ratespec(ceil_Bps) + struct.pack("=IIIII", buffer, cbuffer, shape.frame, 0, 0)


def _class(
    minor_parent: int, handle: int, rate_Bps: int, ceil_Bps: int, shape: PortShape, bucket: int
) -> tuple[int, int, bytes, bytes]:
    parameters = _class_parameters(rate_Bps, ceil_Bps, bucket, shape)
    options = attribute(_TCA_HTB_PARMS, parameters)
    for kind, rate in ((_TCA_HTB_RATE64, rate_Bps), (_TCA_HTB_CEIL64, ceil_Bps)):
        wide = struct.pack("=Q", rate if rate > 0xFFFFFFFF else 0)  # the 32-bit field is full from 34.4 Gb/s on
        parameters += wide
        if any(wide):
            options += attribute(kind, wide)
    return minor_parent, handle, parameters, options


@lru_cache(maxsize=256)
def _classes(shape: PortShape) -> tuple[tuple[int, int, bytes, bytes], ...]:
    """(parent, handle, parameters, options) of every class of a shape."""
    rate = shape.wire_Bps
    if shape.queue is Queue.FIFO:
        return (_class(_HANDLE, _ROOT_CLASS, rate, rate, shape, shape.buffer),)
    minors = [_DEFAULT_MINOR, *range(_FIRST_FLOW_MINOR, _FIRST_FLOW_MINOR + shape.classes)]
    return (
        _class(_HANDLE, _ROOT_CLASS, rate, rate, shape, shape.buffer),
        *(_class(_ROOT_CLASS, _HANDLE | minor, _OWN_RATE_BPS, rate, shape, 0) for minor in minors),
    )


def flow_class(sport: int, dport: int, classes: int) -> int:
    """The flow class, 0 ≤ class < classes, into which the fair queue puts both directions of a connection."""
    return (sport + dport) & (classes - 1)


def _flow_program(shape: PortShape) -> bytes:
    """Classic BPF over the frame of an IPv4 packet without options; what it returns is the class.

    With free acknowledgements: if the packet's length is its headers' (20 and four times TCP's data offset), the qdisc's own
    handle, which HTB takes for "not shaped". Else load both TCP ports, add, mask, offset to the first flow class.
    """
    free = (
        (48, 0, 0, 46),
        (116, 0, 0, 2),
        (84, 0, 0, 0x3C),
        (4, 0, 0, 20),
        (7, 0, 0, 0),
        (40, 0, 0, 16),
        (29, 0, 1, 0),
        (6, 0, 0, _HANDLE),
    )
    by_ports = (
        (40, 0, 0, 34),
        (7, 0, 0, 0),
        (40, 0, 0, 36),
        (12, 0, 0, 0),
        (84, 0, 0, shape.classes - 1),
        (4, 0, 0, _HANDLE | _FIRST_FLOW_MINOR),
        (22, 0, 0, 0),
    )
    program = free + by_ports if shape.free_acks else by_ports
    return b"".join(struct.pack("=HBBI", *line) for line in program)


def _flow_filter(shape: PortShape) -> bytes:
    code = _flow_program(shape)
    return attribute(_TCA_BPF_OPS_LEN, struct.pack("=H", len(code) // 8)) + attribute(_TCA_BPF_OPS, code)


def _tcmsg(ifindex: int, handle: int, parent: int, info: int = 0) -> bytes:
    return struct.pack("=BBHiIII", 0, 0, 0, ifindex, handle, parent, info)


@lru_cache(maxsize=256)
def _template(shape: PortShape) -> tuple[Request, ...]:
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    kind = attribute(_TCA_KIND, b"htb\0")
    default = 1 if shape.queue is Queue.FIFO else _DEFAULT_MINOR
    init = attribute(_TCA_HTB_INIT, struct.pack("=IIIII", 3, 10, default, 0, 0))
    found = [raw_request(RTM_NEWQDISC, _tcmsg(0, _HANDLE, _TC_H_ROOT) + kind + attribute(_TCA_OPTIONS, init), "htb", flags=flags)]
    for parent, handle, _parameters, options in _classes(shape):
        body = _tcmsg(0, handle, parent) + kind + attribute(_TCA_OPTIONS, options)
        found.append(raw_request(RTM_NEWTCLASS, body, f"htb class {handle:x}", flags=flags))
    if shape.queue is Queue.FAIR:
        info = 1 << 16 | 0x0008  # priority 1, ETH_P_IP in network order
        body = _tcmsg(0, 0, _HANDLE, info) + attribute(_TCA_KIND, b"bpf\0") + attribute(_TCA_OPTIONS, _flow_filter(shape))
        found.append(raw_request(RTM_NEWTFILTER, body, "flow filter", flags=flags))
    return tuple(found)


def shape_requests(shape: PortShape, ifindex: int, device: str) -> tuple[Request, ...]:
    """The requests that shape a port, for one ``NetlinkSocket.apply``.

    The interface's txqueuelen must equal ``shape.limit`` before: HTB's leaf queues take their length from it.
    """
    index = struct.pack("=i", ifindex)
    return tuple(Request(item.data[:20] + index + item.data[24:], f"{device}: {item.what}") for item in _template(shape))


def expected(shape: PortShape) -> PortState:
    """What ``read`` finds on a port that has this shape."""
    classes = {handle: ClassState(parent, parameters) for parent, handle, parameters, _ in _classes(shape)}
    return PortState({_HANDLE: "htb"}, classes, (_flow_program(shape),) if shape.queue is Queue.FAIR else ())


def read(netlink: NetlinkSocket, ifindex: int) -> PortState:
    """The shaping of a port as the kernel has it now."""
    qdiscs = {}
    for body in netlink.dump(RTM_GETQDISC, _tcmsg(ifindex, 0, 0)):
        index, handle = struct.unpack_from("=iI", body, 4)
        if index == ifindex:
            qdiscs[handle] = dict(attributes(body[20:]))[_TCA_KIND].rstrip(b"\0").decode()
    classes = {}
    for body in netlink.dump(RTM_GETTCLASS, _tcmsg(ifindex, 0, 0)):
        handle, parent = struct.unpack_from("=II", body, 8)
        options = dict(attributes(dict(attributes(body[20:])).get(_TCA_OPTIONS, b"")))
        parameters = bytearray(options.get(_TCA_HTB_PARMS, b""))
        if len(parameters) >= 44:
            parameters[36:44] = bytes(8)  # level and prio: the kernel's own bookkeeping
        for kind in (_TCA_HTB_RATE64, _TCA_HTB_CEIL64):
            parameters += options.get(kind, bytes(8))
        classes[handle] = ClassState(_ROOT_CLASS if parent == _ROOT_CLASS else _HANDLE, bytes(parameters))
    filters = [
        dict(attributes(dict(attributes(body[20:])).get(_TCA_OPTIONS, b""))).get(_TCA_BPF_OPS, b"")
        for body in (netlink.dump(RTM_GETTFILTER, _tcmsg(ifindex, 0, _HANDLE)) if _HANDLE in qdiscs else ())
        if struct.unpack_from("=I", body, 8)[0]
    ]
    return PortState({handle: kind for handle, kind in qdiscs.items() if handle}, classes, tuple(filters))


def difference(device: str, want: PortState, have: PortState) -> str | None:
    """In words, the first way in which a port is not shaped as planned; None when it is."""
    if have.qdiscs != want.qdiscs:
        kinds = ", ".join(have.qdiscs.values()) or "none"
        return f"{device}: qdisc is {kinds}, planned htb"
    if set(have.classes) != set(want.classes):
        return f"{device}: {len(have.classes)} htb classes, planned {len(want.classes)}"
    for handle, wanted in want.classes.items():
        if have.classes[handle] != wanted:
            rates = tuple(_ceil_of(state.parameters) for state in (have.classes[handle], wanted))
            return f"{device}: class 5:{handle & 0xFFFF:x} has ceil {rates[0]} B/s or other parameters, planned {rates[1]} B/s"
    if len(have.filters) != len(want.filters):
        return f"{device}: {len(have.filters)} flow filters, planned {len(want.filters)}"
    if have.filters != want.filters:
        return f"{device}: the flow filter is another program than planned"
    return None


def _ceil_of(parameters: bytes) -> int:
    wide = int(struct.unpack_from("=Q", parameters, 52)[0]) if len(parameters) >= 60 else 0
    return wide or (int(struct.unpack_from("=I", parameters, 20)[0]) if len(parameters) >= 24 else 0)


def counters(netlink: NetlinkSocket) -> dict[int, PortCounters]:
    """Counters of every shaped port of a namespace, by interface index."""
    found = {}
    for body in netlink.dump(RTM_GETQDISC, _tcmsg(0, 0, 0)):
        index, handle = struct.unpack_from("=iI", body, 4)
        if handle != _HANDLE:
            continue
        told = dict(attributes(body[20:]))
        stats = dict(attributes(told.get(_TCA_STATS2, b"")))
        sent_bytes, sent_packets = struct.unpack_from("=QI", stats.get(1, bytes(12)))
        _qlen, backlog, drops, _requeues, _overlimits = struct.unpack_from("=IIIII", stats.get(3, bytes(20)))
        init = dict(attributes(told.get(_TCA_OPTIONS, b""))).get(_TCA_HTB_INIT, b"")
        free = int(struct.unpack_from("=I", init, 16)[0]) if len(init) >= 20 else 0
        found[index] = PortCounters(sent_bytes, sent_packets, drops, backlog, free)
    return found
