# SPDX-License-Identifier: Apache-2.0

"""Runs ``topodns`` as ``python -m dnsserver``."""

from dnsserver.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
