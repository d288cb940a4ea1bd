"""``python -m dnsserver`` is ``topodns``."""

from dnsserver.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
