"""Fuzzes the responder: ``make fuzz``, or ``python -m tests.fuzz --seconds 60``.

Atheris mutates inputs, beginning with those of the wire table, and keeps each one that reaches new code. The first
octet of an input selects source, transport and server; the rest is the query, with or without a PROXY header. Each
query must get a sound reply or silence, and the cached reply must equal the computed one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dnsserver", "locator"]):
    from dnsserver.message import wire
    from dnsserver.message.records import Address, Host, Record
    from dnsserver.responder.replies import PendingReply
    from tests import api_objects, dns_queries, proxy_headers
    from tests.in_memory import CountedResponder, responder_of
    from tests.outside import FAILED, said
    from tests.random_queries import Asked, replied, without_header
    from tests.replies import assert_same, assert_sound
    from tests.wire_rows import CLUSTER, FLAGS, FORWARDER, IN_A, IN_B, NAME, NOWHERE, ROWS, UNSYNCED, Row

SOURCES = (IN_A, IN_B, FORWARDER, NOWHERE, "fd00:1::1", "10.244.1.1", "10.244.2.77", "2001:db8::9")
PROTOCOLS = ("udp", "tcp")
# Without and with an upstream and PROXY headers.
SERVERS = (
    {},
    {
        "upstream": ["192.0.2.1"],
        "nsid": "off",
        "zone": ["cluster.local", "local"],
        "pods": "insecure",
        "proxy-protocol": True,
    },
)
LONGEST = 2048  # octets; an OPT record with every option is shorter


class Target:
    """A responder of each server, with the cache of all earlier inputs."""

    def __init__(self) -> None:
        self.responders = [responder_of(api_objects.listed(CLUSTER), {**FLAGS, **flags}) for flags in SERVERS]

    def __call__(self, data: bytes) -> None:
        """Ask. Raises AssertionError for a wrong reply, or whatever the responder raises."""
        if not data:
            return
        responder = self.responders[data[0] >> 4 & 1]
        each = Asked(data[1:], SOURCES[data[0] & 7], PROTOCOLS[data[0] >> 3 & 1])
        computed = reply_of(responder, each, compute=True)
        whole = reply_of(responder, each._replace(proto="tcp"), compute=True)
        for _ in range(2):
            reply = reply_of(responder, each)
            assert_sound_reply(responder, each, reply)
            assert_same(reply, computed, whole)


def assert_sound_reply(responder: CountedResponder, asked: Asked, reply: bytes | None) -> None:
    """A reply is sound for the query after a PROXY header; after a malformed header there is none."""
    left = without_header(responder, asked)
    if left is None:
        assert reply is None
    else:
        assert_sound(asked._replace(wire=left[0]), reply)


def reply_of(responder: CountedResponder, asked: Asked, *, compute: bool = False) -> bytes | None:
    """Return the reply; one that waits for an upstream gets an alias and, for type A, addresses."""
    reply = replied(responder, asked, compute=compute)
    if not isinstance(reply, PendingReply):
        return reply
    found = [Record(reply.target, wire.CNAME, 60, Host("cdn.example.net"))]
    if reply.qtype == wire.A:
        found += [Record("cdn.example.net", wire.A, 60, Address(bytes((192, 0, 2, last)))) for last in range(60)]
    unfound = responder.finish(reply, FAILED)
    assert isinstance(unfound, bytes)
    assert_sound_reply(responder, asked, unfound)
    finished = responder.finish(reply, said(found) if reply.envelope.query[1] & 1 else FAILED)
    assert isinstance(finished, bytes)
    return finished


def seed_of(row: Row, server: int, header: bytes = b"") -> bytes:
    """Return a row of the wire table as an input; with a *header*, its source is the forwarder."""
    proto, source = PROTOCOLS.index(row.only or "udp"), FORWARDER if header else row.client
    return bytes((SOURCES.index(source) | proto << 3 | server << 4,)) + header + row.wire


def headers() -> Iterator[bytes]:
    """Yield PROXY headers of each kind."""
    yield proxy_headers.proxied(IN_A)
    yield proxy_headers.proxied("fd00:1::1", proxy_headers.tlv(4, b"ab") + proxy_headers.tlv(3), stream=True)
    yield proxy_headers.proxied(f"::ffff:{IN_B}")
    yield proxy_headers.proxy_header(command=proxy_headers.LOCAL, family=proxy_headers.UNSPEC)
    yield proxy_headers.proxy_header(b"12345", family=proxy_headers.UNSPEC)
    yield proxy_headers.proxy_header(bytes(216), family=proxy_headers.UNIX_DGRAM)
    yield proxy_headers.proxied(NOWHERE)


def words() -> str:
    """Return octets worth inserting anywhere (options, records, labels), as libFuzzer reads a dictionary."""
    found = {
        dns_queries.option(code, data)
        for code in (3, 8, 10, 15, dns_queries.CLIENT_OPTION)
        for data in (b"", b"12345678")
    }
    found |= {
        dns_queries.ecs(text) for text in ("0", "0.0.0.0/0", IN_A, "10.244.1.0/24", "192.0.2.128/25", "2001:db8::/57")
    }
    found |= {dns_queries.opt(), dns_queries.opt(version=1), dns_queries.opt(flags=0x8000, size=512), b"\xc0\x0c", NAME}
    found |= {
        dns_queries.encoded(label)[:-1] for label in ("_tcp", "_zone", "pin", "prefer", "svc", "pod", "cluster.local")
    }
    found |= {*headers(), proxy_headers.PROXY_SIGNATURE}
    found |= {number.to_bytes(2) + b"\0\1" for number in (1, 5, 6, 12, 16, 28, 33, 41, 252, 255)}
    return "".join('"' + "".join(map("\\x{:02x}".format, word)) + '"\n' for word in sorted(found))


def main(arguments: Sequence[str] | None = None) -> None:
    """Fuzz until the time is over, and end the process with status 0; or with another one at a wrong reply."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutations; 0 takes another one each time")
    parser.add_argument("--keep", type=Path, help="folder that keeps inputs for the next run, which begins with them")
    parser.add_argument("input", nargs="?", type=bytes.fromhex, help="run this input alone, in hex")
    parsed = parser.parse_args(arguments)
    target = Target()
    if parsed.input is not None:
        target(parsed.input)
        return

    def ask(data: bytes) -> None:
        try:
            target(data)
        except BaseException:
            traceback.print_exc()
            print(f"input: {data.hex()}\nalone: python -m tests.fuzz {data.hex()}", file=sys.stderr, flush=True)
            os._exit(1)

    with tempfile.TemporaryDirectory() as folder:
        if pid := os.fork():  # libFuzzer ends its process without running Python's cleanup
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        seeds, dictionary = Path(folder, "seeds"), Path(folder, "words")
        seeds.mkdir()
        for number, row in enumerate((*ROWS, *UNSYNCED)):
            for server in range(len(SERVERS)):
                if len(row.wire) < LONGEST:
                    (seeds / f"{number}-{server}").write_bytes(seed_of(row, server))
        for number, (row, header) in enumerate(zip(ROWS, cycle(headers()), strict=False)):
            if len(header + row.wire) < LONGEST:
                (seeds / f"{number}-proxied").write_bytes(seed_of(row, 1, header))
        dictionary.write_text(words())
        folders = [seeds] if parsed.keep is None else [parsed.keep, seeds]
        folders[0].mkdir(parents=True, exist_ok=True)
        options = {
            "max_total_time": parsed.seconds,
            "max_len": LONGEST,
            "dict": dictionary,
            "timeout": 10,  # seconds for one input
            "seed": parsed.seed,
            "artifact_prefix": f"{folder}/",
            "print_final_stats": 1,
        }
        atheris.Setup([sys.argv[0], *(f"-{key}={value}" for key, value in options.items()), *map(str, folders)], ask)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
