# SPDX-License-Identifier: Apache-2.0

"""``python -m bench.standin --kubeconfig PATH`` serves the cluster until it is stopped, and writes a kubeconfig for it.

curl -X POST http://127.0.0.1:PORT/standin/rate/500    # 500 pods and 500 slices change in each second; 0 ends that
curl -X POST http://127.0.0.1:PORT/standin/step/1000   # 1,000 of each, as fast as the watches take them
curl -X POST http://127.0.0.1:PORT/standin/expire/Pod  # all pods must be listed anew
curl http://127.0.0.1:PORT/standin/status
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
from pathlib import Path

from bench.standin import wire
from bench.standin.numbering import SERVICES
from bench.standin.objects import StandinObjects
from bench.standin.recording import recording
from bench.standin.serving import serve
from tests.kit.kube import config_of

FORMS = {"json": wire.JSON, "protobuf": wire.PROTOBUF}


def main() -> None:
    """Prepare all objects, print the port once they can be asked for, and serve."""
    parser = argparse.ArgumentParser(prog="python -m bench.standin", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="the file to write")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--form", choices=FORMS, default="json", help="topodns reads JSON, CoreDNS asks for protobuf")
    parser.add_argument("--services", type=int, default=SERVICES, help="each has 15 pods (default: %(default)s)")
    parser.add_argument("--max-overload", default="", help="balance all Services, with this annotation")
    options = parser.parse_args()
    objects = StandinObjects(recording(), FORMS[options.form], options.services, options.max_overload)
    gc.collect()
    gc.freeze()  # no collection walks through all objects while something is measured
    with serve(objects, options.port) as (_, port):
        options.kubeconfig.write_text(json.dumps(config_of(f"http://127.0.0.1:{port}")))
        print(f"serving on port {port}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
