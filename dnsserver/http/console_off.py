# SPDX-License-Identifier: Apache-2.0

"""What stands at ``/`` where the console is off: how to switch it on, and nothing of this server or its cluster."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dnsserver.http.problems import SAFE, problem

HTML = "text/html"
DETAIL = (
    "the console is off here: 'topodns serve --console' serves it to everybody who reaches this address, and "
    "'topodns console' shows the cluster on your own machine"
)
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>The console is off · topodns</title>
</head>
<body>
<main>
<h1>The console is off</h1>
<p>This address has metrics and health checks alone. There are two ways to see the console:</p>
<ol>
<li>On your own machine, with a kubeconfig: <code>topodns console</code>. It changes nothing in the cluster, and nobody
else can reach it.</li>
<li>Here, with Tail and what is asked: switch it on with <code>--console</code>, or with
<code>kubectl -n topodns set env deployment/topodns TOPODNS_CONSOLE=on</code>, and then
<code>kubectl -n topodns port-forward deployment/topodns 9153</code>. Everybody who reaches this address can read it
then: let a NetworkPolicy say who does.</li>
</ol>
</main>
</body>
</html>
"""


def routes() -> list[Route]:
    """Return the routes. The status is 404: there is no console."""
    return [Route("/", _answer, methods=["GET"])]


async def _answer(request: Request) -> Response:
    if HTML not in request.headers.get("accept", ""):
        return problem(404, DETAIL, headers={"Vary": "Accept"})
    return Response(PAGE, 404, {**SAFE, "Vary": "Accept"}, media_type=HTML)
