# SPDX-License-Identifier: Apache-2.0

"""The attacks, each by a pod that may send packets to topodns and nothing else; and the usual load."""

from __future__ import annotations

from collections.abc import Mapping

from bench.attacks import messages
from bench.attacks.floods import Attack, Crowd, Flood
from bench.attacks.messages import (
    DATAGRAM,
    LONGEST_DATAGRAM,
    LONGEST_MESSAGE,
    get,
    http2,
    nothing,
    stream_of,
    with_options,
)
from bench.attacks.targets import BYSTANDER, FORWARDER

USUAL = "usual queries"
ATTACKS: Mapping[str, Attack] = {
    "options": Attack("datagrams of 1,472 octets, full of empty EDNS options", Flood(with_options(DATAGRAM))),
    "options-longest": Attack("the same with datagrams of 64 KiB", Flood(with_options(LONGEST_DATAGRAM))),
    "32-options": Attack("datagrams with 32 EDNS options", Flood(with_options(190))),
    "long-names": Attack("datagrams with 16 records, each with a name of 127 labels", Flood(messages.with_long_names)),
    "pointers": Attack("datagrams whose names are long chains of compression pointers", Flood(messages.with_pointers)),
    "questions": Attack("datagrams that announce 65,535 questions", Flood(messages.with_many_questions)),
    "cookies": Attack("usual names, each query with another DNS cookie", Flood(messages.with_cookies)),
    "new-names": Attack("names that do not exist, all different", Flood(messages.new_names)),
    "zonal-names": Attack(
        "zonal names of a Service with 4,000 endpoints, all different", Flood(messages.zonal_names), only_here=True
    ),
    "endpoint-names": Attack(
        "names of 4,000 endpoints, in random case, of several types", Flood(messages.endpoint_names)
    ),
    "large-answers": Attack(
        "the name of a Service with 4,000 endpoints, in random case, of several types", Flood(messages.large_answers)
    ),
    "reverse-names": Attack("names of addresses, known and unknown", Flood(messages.reverse_names), only_here=True),
    "subnets": Attack(
        "the same Service through a trusted forwarder, each query for another client",
        Flood(messages.random_subnets, FORWARDER),
    ),
    "tcp-options": Attack(
        "400 TCP connections, each sending queries of 64 KiB with 16,000 empty options again and again",
        Crowd(400, stream_of(with_options(LONGEST_MESSAGE)), again=True),
    ),
    "tcp-tiny": Attack("400 TCP connections full of the shortest queries", Crowd(400, messages.tiny, again=True)),
    "tcp-new-names": Attack(
        "400 TCP connections full of names that do not exist", Crowd(400, stream_of(messages.new_names), again=True)
    ),
    "tcp-zonal-names": Attack(
        "400 TCP connections full of zonal names of a Service with 4,000 endpoints",
        Crowd(400, stream_of(messages.zonal_names), again=True),
        only_here=True,
    ),
    "tcp-unread": Attack(
        "1,000 TCP connections that ask for the largest answer again and again, and read nothing",
        Crowd(1_000, messages.unread, again=True, reads=False),
    ),
    "tcp-begun": Attack(
        "4,096 TCP connections, each with a message of 64 KiB that lacks its end", Crowd(4_096, messages.begun)
    ),
    "tcp-slow": Attack("1,000 TCP connections that send an octet a second", Crowd(1_000, messages.begun, pause=1.0)),
    "tcp-idle": Attack("4,096 TCP connections that send nothing", Crowd(4_096, nothing)),
    "tcp-hang-up": Attack(
        "TCP connections that hang up after one query, as fast as the machine opens them",
        Crowd(64, messages.usual, leaves=True),
    ),
    "http2-window": Attack(
        "60 HTTP/2 connections with 100 requests each, whose client takes no octet of the replies",
        Crowd(60, http2(window=0, reset=False), http=True),
    ),
    "http2-reset": Attack(
        "20 HTTP/2 connections with 5,000 requests each, all of them reset at once",
        Crowd(20, http2(window=65_535, reset=True), again=True, http=True),
    ),
    "http-unread": Attack(
        "100 connections that ask for /metrics again and again, and read nothing",
        Crowd(100, get("/metrics", times=1_000), again=True, reads=False, http=True),
    ),
    "http-metrics": Attack(
        "20 connections that ask for /metrics again and again", Crowd(20, get("/metrics"), again=True, http=True)
    ),
    "http-hang-up": Attack(
        "connections that ask for /metrics and hang up", Crowd(20, get("/metrics"), leaves=True, http=True)
    ),
    "http-slow": Attack(
        "1,000 connections that send an octet of a request a second",
        Crowd(1_000, get("/metrics"), pause=1.0, http=True),
    ),
    "http-idle": Attack("1,000 connections that send no request", Crowd(1_000, nothing, http=True)),
    "http-header": Attack(
        "200 connections with a header that does not end", Crowd(200, messages.endless_header, again=True, http=True)
    ),
    "http-explain": Attack(
        "20 connections that have a large answer explained again and again",
        Crowd(20, messages.explained, again=True, http=True),
        only_here=True,
    ),
    "http-console": Attack(
        "20 connections that load the console's map again and again",
        Crowd(20, get("/map"), again=True, http=True),
        only_here=True,
    ),
}
LOADS: Mapping[str, Attack] = {
    USUAL: Attack("no attack: names that have been asked for before", Flood(messages.usual_names, BYSTANDER)),
    **ATTACKS,
}
