# SPDX-License-Identifier: Apache-2.0

"""Plays the day again and again, until Ctrl-C, and says what happens."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from itertools import count, islice
from types import FrameType
from typing import NoReturn

try:
    from examples.demo.day import DAY
    from examples.demo.server import Server, ServerError
    from examples.demo.stage import staged
except ModuleNotFoundError as missing:
    sys.exit(f"demo: {missing.name} is not installed here; 'make demo' installs what it needs")

LISTEN, HTTP = "127.0.0.1:1053", "127.0.0.1:9153"  # as with 'make run'
SLOWEST = 100  # times a day of two minutes
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PORTS = "To take other ports: TOPODNS_LISTEN=127.0.0.1:5353 TOPODNS_HTTP=127.0.0.1:9154 make demo"


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the day; return 0 once somebody interrupts it, 1 if it cannot be played."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--listen", default=os.environ.get("TOPODNS_LISTEN", LISTEN), help="default: %(default)s")
    parser.add_argument("--http", default=os.environ.get("TOPODNS_HTTP", HTTP), help="default: %(default)s")
    parser.add_argument(
        "--pace", type=_pace, default=1.0, help="seconds that a second of the day takes (default: %(default)s)"
    )
    parser.add_argument("--days", type=_days, help="end after so many days (default: when somebody presses Ctrl-C)")
    options = parser.parse_args(arguments)
    if options.http == "off":
        parser.error("--http: off found, expected ADDRESS:PORT: the demo is for the console")
    for number in ENDING:
        signal.signal(number, _interrupt)
    try:
        with staged(listen=options.listen, http=options.http) as stage:
            print(_welcome(stage.server))
            for _ in islice(count(), options.days):
                for moment in DAY:
                    print(f"{moment.time}  {moment.says}", flush=True)
                    stage.play(moment, pace=options.pace)
                print(flush=True)
    except ServerError as error:
        print(error, *([PORTS] if "port in use" in str(error) else []), sep="\n", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _pace(text: str) -> float:
    pace = float(text)
    if not 0 <= pace <= SLOWEST:
        raise argparse.ArgumentTypeError(f"{text!r} found, expected a number from 0 to {SLOWEST}")
    return pace


def _days(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} found, expected a whole number")
    return int(text)


def _welcome(server: Server) -> str:
    host, port = server.dns
    dig = "" if shutil.which("dig") else "  (once dig is installed; on Debian: apt install bind9-dnsutils)"
    return f"""
The console:  {server.http}/
Too many:     {server.http}/services/shop/catalog, whose endpoints in eu-west-a are overloaded
Balanced:     {server.http}/services/shop/sessions, with max-overload 1.5: some clients are spilled
Decisions:    .venv/bin/topodns tail --server {server.http}
Metrics:      {server.http}/metrics
Ask, too:     dig @{host} -p {port} +short +subnet=10.244.6.10/32 memcached.shop.svc.cluster.local{dig}

A day takes two minutes, and then begins again, until Ctrl-C.
"""


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """End the demo in order; whoever presses Ctrl-C once more while it ends does not disturb that."""
    for ending in ENDING:
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
