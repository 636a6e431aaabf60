"""The northbound's words: HTTP in pieces, messages as JSON, the configuration and how it can be wrong."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.northbound_http import (
    STREAM_HEAD,
    HttpError,
    Line,
    Request,
    RequestParser,
    Response,
    ResponseParser,
    render_request,
    render_response,
)
from controller.ocs_config import ConfigError, OcsConfig, PlaneConfig, Timing, parse_config, to_text
from controller.ocs_messages import (
    Answer,
    Event,
    EventKind,
    Keeper,
    MessageError,
    Order,
    Outcome,
    PlaneState,
    Verb,
    answer_of,
    decode,
    encode,
    event_of,
    orders_body,
    orders_of,
    plane_state_of,
    to_json,
)

pytestmark = pytest.mark.unit


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Data as a socket may deliver it."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


cut_places = st.lists(st.integers(0, 10_000), max_size=6)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), cut_places)
def test_requests_come_out_whole_however_they_arrive(bodies: list[bytes], cuts: list[int]) -> None:
    parser = RequestParser()
    data = b"".join(render_request("POST", "/circuits", body) for body in bodies)
    found = [request for piece in pieces(data, cuts) for request in parser.feed(piece)]
    assert found == [Request("POST", "/circuits", body) for body in bodies]


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), cut_places)
def test_responses_come_out_whole_however_they_arrive(bodies: list[bytes], cuts: list[int]) -> None:
    parser = ResponseParser()
    data = b"".join(render_response(200, body) for body in bodies)
    assert [r for piece in pieces(data, cuts) for r in parser.feed(piece)] == [Response(200, body) for body in bodies]


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\n\r"), max_size=30), max_size=5), cut_places)
def test_a_stream_comes_out_line_by_line_however_it_arrives(lines: list[str], cuts: list[int]) -> None:
    parser = ResponseParser()
    data = STREAM_HEAD + "".join(line + "\n" for line in lines).encode()
    assert [part for piece in pieces(data, cuts) for part in parser.feed(piece)] == [Line(line.encode()) for line in lines]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4000, 431),
    ],
)
def test_what_is_not_spoken_here_is_refused_with_its_status(raw: bytes, status: int) -> None:
    with pytest.raises(HttpError) as refused:
        list(RequestParser().feed(raw))
    assert refused.value.status == status


def test_a_client_that_closes_says_so() -> None:
    (request,) = RequestParser().feed(b"GET /planes HTTP/1.1\r\nConnection: Close\r\n\r\n")
    assert request.close


instants = st.none() | st.integers(0, 1 << 62)
ports = st.integers(0, 40)
orders = st.builds(
    Order, a=ports, b=ports, planes=st.lists(st.integers(0, 7), max_size=3).map(tuple), at_ns=instants,
    replace=st.booleans(), force=st.booleans(), tag=st.text(),
)  # fmt: skip


@given(st.lists(orders, max_size=4), st.sampled_from(Verb))
def test_orders_survive_their_way_over_the_wire(sent: list[Order], verb: Verb) -> None:
    sent = [dataclasses.replace(order, verb=verb) for order in sent]
    assert list(orders_of(orders_body(sent), verb)) == sent


events = st.builds(
    Event, kind=st.sampled_from(EventKind), at_ns=st.integers(0, 1 << 62), plane=st.none() | st.integers(0, 7), a=instants,
    b=instants, tag=st.text(), keeper=st.none() | st.sampled_from(Keeper), dark_ns=instants, up_ns=instants, late_ns=instants,
    detail=st.text(),
)  # fmt: skip


@given(events)
def test_events_survive_their_way_over_the_wire(event: Event) -> None:
    line = encode(to_json(event))
    assert b"\n" not in line
    assert event_of(decode(line)) == event


def test_answers_and_planes_survive_their_way_over_the_wire() -> None:
    answer = Answer(plane=1, a=0, b=3, outcome=Outcome.REFUSED, reason="busy port 3", tag="x")
    assert answer_of(decode(encode(to_json(answer)))) == answer
    state = PlaneState(
        plane=0, dpid="00000000000c5001", state="ready", ports=8, tau_s=0.02, keeper=Keeper.LIGHT, circuits=((0, 3),)
    )
    assert plane_state_of(decode(encode(to_json(state)))) == state


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\xff", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"circuits": {}}', "the body is"),
        (b'{"circuits": [1]}', r"circuits\[0\] is not an object"),
        (b'{"circuits": [{"a": 0, "b": 1}, {"a": true, "b": 1}]}', r"circuits\[1\]\.a is not of type int: True"),
        (b'{"circuits": [{"a": 0, "b": 1, "replace": 1}]}', "replace is not of type bool"),
        (b'{"circuits": [{"a": 0, "b": 1, "verb": "connect"}]}', "unknown key 'verb'"),
        (b'{"circuits": [{"a": 0, "b": 1, "planes": ["0"]}]}', "not a list of integers"),
        (b'{"circuits": [{"b": 1}]}', "needs the ports a and b"),
    ],
)
def test_a_request_that_says_something_else_is_told_where(body: bytes, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        orders_of(body, Verb.CONNECT)


CONFIG = OcsConfig(
    planes=(PlaneConfig(1, 0.02, (11, 12), (3, 4)), PlaneConfig(2, 0.02, (11, 12), (5, 6))),
    northbound="/run/ocs.sock",
    openflow_port=6653,
    light_fd=7,
    timing=Timing(settle_s=0.002),
)


def test_a_configuration_survives_its_way_to_the_controller() -> None:
    assert parse_config(to_text(CONFIG)) == CONFIG
    timed = dataclasses.replace(CONFIG, light_fd=None, planes=(PlaneConfig(1, 0.02, (11, 12)),))
    assert parse_config(to_text(timed)) == timed


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("planes",), [], "at least one plane"),
        (("planes", 1, "dpid"), 1, "two have the same dpid"),
        (("planes", 0, "dpid"), 0, r"planes\[0\]\.dpid"),
        (("planes", 0, "tau_s"), -1, r"planes\[0\]\.tau_s is not a time"),
        (("planes", 0, "ofports"), [11], "at least 2 ports"),
        (("planes", 0, "ofports"), [11, 11], "different positive integers"),
        (("planes", 0, "ifindexes"), [3], "each of the 2 ports needs its interface"),
        (("planes", 0, "circuits"), [], "unknown key 'circuits'"),
        (("timing", "barrier_s"), "1", "timing.barrier_s is not a time"),
        (("openflow_port",), 0, "openflow_port is not an integer of at least 1"),
        (("northbound",), 5, "northbound and openflow_host are strings"),
    ],
)
def test_a_configuration_that_cannot_be_is_told_where(path: tuple[str | int, ...], value: object, words: str) -> None:
    said = json.loads(to_text(CONFIG))
    inner = said
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(ConfigError, match=words):
        parse_config(json.dumps(said))
