"""``topodns`` that remembers no answer: every query is read, resolved and rendered.

It shows what the memory is worth; the product has no switch for it.
"""

from __future__ import annotations

from dnsserver.cli.main import main
from dnsserver.responder.responder import Responder

Responder.answer = Responder.compute  # type: ignore[method-assign]

if __name__ == "__main__":
    raise SystemExit(main())
