# SPDX-License-Identifier: Apache-2.0

"""A small cluster on the pages of the console, and pages as a browser reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from dnsserver.tools.console.console import PAGES
from tests.kit.api_client import Answered, request
from tests.kit.api_objects import (
    HOSTNAME,
    RACK,
    REGION,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    listed,
    namespace,
    node,
    pod,
    service,
)
from tests.kit.topodns_process import Server, serving

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
CONSOLE_CLUSTER: list[Item] = [
    *map(namespace, ("shop", "lab")),
    node("a1", {ZONE: "a", REGION: "r", RACK: "1"}, addresses=["10.0.0.1"], cidrs=["10.244.1.0/24"]),
    node("a2", {ZONE: "a", REGION: "r", RACK: "2"}, addresses=["10.0.0.2"], cidrs=["10.244.2.0/24"]),
    node("b1", {ZONE: "b", REGION: "r"}),
    node("bare", {}),
    pod("front", ["10.244.1.9"], "a1"),
    pod("back", ["10.244.9.1"], "b1", where="lab"),
    service("near", keys=f"{HOSTNAME},{ZONE},{RACK},*"),
    endpoint_slice("near", 1, [
        endpoint("10.244.1.7", nodeName="a1"), endpoint("10.244.2.7", nodeName="a2"),
        endpoint("10.244.2.8", nodeName="a2", ready=False), endpoint("10.244.3.7", nodeName="b1")]),
    service("hard", keys=ZONE),
    endpoint_slice("hard", 1, [endpoint("10.244.3.9", nodeName="b1")]),
    service("wrong", keys="*,a"),
    service("plain"),
]  # fmt: skip


def untried(paths: Iterable[str]) -> list[str]:
    """Return the pages of the console that none of these *paths* is."""
    patterns = {page.path: re.sub(r"\{\w+\}", "[^/?]+", page.path) + r"(\?.*)?" for page in PAGES}
    tried = list(paths)
    return [page for page, pattern in patterns.items() if not any(re.fullmatch(pattern, path) for path in tried)]


@contextmanager
def serving_console(folder: Path, cluster: list[Item], **flags: Any) -> Iterator[Server]:
    """Serve a cluster and the console, which is there by default on loopback."""
    path = folder / "cluster.json"
    path.write_text(listed(cluster))
    with serving(folder, path, flags={"http": "127.0.0.1:0", "trusted-forwarder": ["127.0.0.0/8"], **flags}) as running:
        yield running


class Page(HTMLParser):
    """A page, as a browser reads it: the elements with their attributes, and the text without tags."""

    def __init__(self, answered: Answered) -> None:
        super().__init__()
        self.status = answered.status
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(answered.body.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.texts))

    def attributes(self, tag: str, name: str) -> list[str]:
        return [attributes[name] for found, attributes in self.elements if found == tag and name in attributes]

    @property
    def rows(self) -> list[str]:
        return [attributes["data-key"] for _, attributes in self.elements if "data-key" in attributes]


def page(server: Server, path: str, **more: str) -> Page:
    return Page(request(server, path, headers=HTML, **more))


def is_safe(found: Page) -> bool:
    """Whether a page runs and loads nothing but the console's own."""
    scripts = [attributes.get("src", "") for tag, attributes in found.elements if tag == "script"]
    links = [*found.attributes("a", "href"), *found.attributes("link", "href"), *found.attributes("form", "action")]
    names = {name for _, attributes in found.elements for name in attributes}
    return (
        all(source.startswith("/static/") for source in scripts)
        and all(link.startswith(("/", "#")) and not link.startswith("//") for link in links)
        and not {tag for tag, _ in found.elements} & {"style", "img", "iframe", "object", "base"}
        and not any(name.startswith("on") or name == "style" for name in names)
    )
