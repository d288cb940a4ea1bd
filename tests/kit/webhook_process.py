# SPDX-License-Identifier: Apache-2.0

"""``topodns webhook`` as a process that a real API server calls."""

from __future__ import annotations

import base64
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.kit.certificates import issued
from tests.kit.kube import ControlPlane, Item
from tests.kit.topodns_process import SERVER_COMMAND, Process
from tests.kit.waiting import PATIENCE, until

PATH = "/mutate/endpointslices"
# The certificate of an authority, as webhook configurations have it.
AUTHORITY = base64.b64encode(issued(["x"], 1_700_000_000, 1e9)[0]).decode()
LABEL = "topodns.io/hints"


class Webhook(Process):
    """A running ``topodns webhook``, which listens at ``port`` for HTTPS and at ``http`` for metrics and health."""

    def __init__(self, arguments: Sequence[str], *, port: int = 0) -> None:
        command = ["webhook", "--http=127.0.0.1:0", f"--webhook-listen=127.0.0.1:{port}", *arguments]
        super().__init__(command, command=SERVER_COMMAND)
        self.http = self.wait_for(r"^listening http (\S+)$")[1]
        self.port = int(self.wait_for(r"^listening https 127\.0\.0\.1:(\d+)$")[1])

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text of an HTTP response."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=PATIENCE) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def until_ready(self) -> Webhook:
        until(lambda: self.get("/readyz")[0] == 200, lambda: f"{self.get('/readyz?verbose')}: {self.lines}")
        return self

    def until_leading(self) -> Webhook:
        self.wait_for("became leader: this replica writes EndpointSlices")
        return self

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a sample, 0 if there is none."""
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if (sample.name, sample.labels) == (name, labels):
                    return sample.value
        return 0.0


def configuration(name: str, port: int, **client: Any) -> Item:
    """Return the configuration that makes an API server call a webhook on this machine."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": "hints.topodns.io",
                "clientConfig": {"url": f"https://127.0.0.1:{port}{PATH}", **client},
                "rules": [
                    {
                        "apiGroups": ["discovery.k8s.io"],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": ["endpointslices"],
                        "scope": "Namespaced",
                    }
                ],
                "objectSelector": {"matchLabels": {LABEL: "true"}},
                "failurePolicy": "Ignore",
                "timeoutSeconds": 2,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


@contextmanager
def registered(plane: ControlPlane, item: Item) -> Iterator[None]:
    """Have a webhook called until the block ends."""
    plane.api.request("POST", plane.api.path("MutatingWebhookConfiguration"), item)
    try:
        yield
    finally:
        plane.api.delete(item)


def is_called(plane: ControlPlane, webhook: Webhook, namespace: str) -> None:
    """Wait until the API server calls a webhook: it hears of a configuration and its CAs a moment after."""
    tried = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "tried", "namespace": namespace, "labels": {LABEL: "true"}},
        "addressType": "IPv4",
        "endpoints": [],
        "ports": [],
    }

    def reviews() -> float:
        text = webhook.get("/metrics")[1]
        return sum(map(float, re.findall(r"^topodns_webhook_requests_total\{.*\} (.*)$", text, re.MULTILINE)))

    def called() -> bool:
        before = reviews()
        plane.api.request("POST", plane.api.path("EndpointSlice", namespace) + "?dryRun=All", tried)
        return reviews() > before

    until(called, "the API server calls the webhook")
