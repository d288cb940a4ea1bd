# SPDX-License-Identifier: Apache-2.0

"""Runs a federation API and three clusters until Ctrl-C, and says what to try."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

try:
    from _pytest.outcomes import Skipped

    from dnsserver.net.sockets import CannotListen, bound_pairs
    from dnsserver.settings.values import LISTEN_ADDRESS
    from examples.federation.stage import Stage, staged
    from tests.kit.federation import ZONE
    from tests.kit.go_programs import BuildError
    from tests.kit.waiting import NotReadyError
except ModuleNotFoundError as missing:
    sys.exit(f"federation: {missing.name} is not installed here; 'make federation' installs what it needs")

LISTEN, FOLDER = "127.0.0.1:1053", "build/federation"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PORT = "To take another port: TOPODNS_LISTEN=127.0.0.1:5353 make federation"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until somebody interrupts it, then return 0; 1 if it cannot run."""
    parser = argparse.ArgumentParser(prog="python -m examples.federation", description=__doc__)
    listen = os.environ.get("TOPODNS_LISTEN", LISTEN)
    parser.add_argument("--listen", type=LISTEN_ADDRESS.read, default=listen, help="default: %(default)s")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for its files (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        for pair in bound_pairs([options.listen]):  # before all that takes minutes
            for bound in pair:
                bound.close()
    except CannotListen as error:
        print(f"federation: {error}", PORT, sep="\n", file=sys.stderr)
        return 1
    for number in ENDING:
        signal.signal(number, _interrupt)
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    print("Starting a federation API and three clusters. The first time, this builds Kubernetes, which takes minutes.")
    try:
        with staged(options.folder.absolute(), listen=str(options.listen)) as stage:
            print(_welcome(stage, options.folder), flush=True)
            while True:
                signal.pause()
    except (Skipped, BuildError, NotReadyError) as error:
        print(f"federation: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _welcome(stage: Stage, folder: Path) -> str:
    dig = "" if shutil.which("dig") else "  (once dig is installed; on Debian: apt install bind9-dnsutils)"
    return f"""
In another terminal, in this folder:

  export KUBECONFIG={stage.kubeconfig} PATH={stage.programs}:$PATH

  kubectl --context federation apply -f examples/federation/web.yaml
  kubectl --context federation get deployment,service
  kubectl --context east get deployment,service     # also: south, west
  dig @{stage.server.host} -p {stage.server.port} +short web.shop.{ZONE}{dig}

  kill -STOP $(cat {folder}/west.pid)     # the API server of west hangs,
  kill -CONT $(cat {folder}/west.pid)     # and is back

docs/federation.md goes on from here. Ctrl-C ends it all.
"""


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """End in order; whoever presses Ctrl-C once more while it ends does not disturb that."""
    for ending in ENDING:
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
