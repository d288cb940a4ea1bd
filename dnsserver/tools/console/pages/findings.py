# SPDX-License-Identifier: Apache-2.0

"""The findings in the clusters by their causes, or all with one code."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request

from dnsserver.tools.api.operations import Parameter
from dnsserver.tools.console.causes import causes_of
from dnsserver.tools.console.page import PAGE, Page, PageContext, read

CODE = Parameter("code", "The code of findings.", str, "a code")


async def findings_page(context: PageContext, request: Request) -> Page:
    """Return all findings with one code, a part at a time; some of each code without one."""
    given = read(request, CODE, PAGE)
    context.inspected.current()
    work = partial(causes_of, context.changes.findings, code=given["code"], number=given["page"])
    causes = await context.turns.in_thread(work)
    return Page("findings.html", given["code"] or "Findings", {"causes": causes})
