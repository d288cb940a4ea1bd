# SPDX-License-Identifier: Apache-2.0

"""``topodns`` without the answer cache: it reads, resolves and renders every query.

Shows what the answer cache saves; ``topodns`` has no flag for this.
"""

from __future__ import annotations

from dnsserver.cli.main import main
from dnsserver.responder.answer_cache import AnswerCache

AnswerCache.find = lambda self, question: None  # type: ignore[assignment, method-assign]

if __name__ == "__main__":
    raise SystemExit(main())
