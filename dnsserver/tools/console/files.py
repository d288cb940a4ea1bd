# SPDX-License-Identifier: Apache-2.0

"""The stylesheet, the scripts and the icon."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
# The pages ask for them by their version, so that browsers may keep them for ever.
KEPT = {"Cache-Control": "public, max-age=31536000, immutable"}
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Files:
    """The files, as they were when the server started."""

    def __init__(self) -> None:
        self._contents = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir())}
        self.version = hashlib.sha256(b"".join(self._contents.values())).hexdigest()[:16]
        """Differs when any of them does."""

    def endpoints(self) -> dict[str, Callable[[Request], Awaitable[Response]]]:
        """Return what answers, by path."""
        return {f"/static/{name}": self._endpoint(name) for name in self._contents}

    def _endpoint(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        response = Response(self._contents[name], media_type=MEDIA_TYPES[Path(name).suffix], headers=KEPT)

        async def endpoint(request: Request) -> Response:
            return response

        return endpoint
