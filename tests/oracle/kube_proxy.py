# SPDX-License-Identifier: Apache-2.0

"""What kube-proxy makes of hints, by its own code: a Go program asks ``CategorizeEndpoints`` of its package."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.kit import go_programs

Item = dict[str, Any]
Used = Mapping[str, Mapping[str, Sequence[str]]]  # addresses by the name of a node, and by family: IPv4, IPv6


class KubeProxy:
    """A kube-proxy for each node of a cluster, without a network."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def used(self, service: Item, slices: Sequence[Item], nodes: Sequence[Item]) -> Used:
        """Return the addresses to which each node sends what comes for the cluster IP of a Service with *slices*."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"service": service, "slices": slices, "nodes": nodes}), file=self._process.stdin, flush=True)
        answer: Used = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def kube_proxy() -> Iterator[KubeProxy]:
    """Run the program in the block."""
    with subprocess.Popen(
        [go_programs.kube_proxy()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:  # which closes its input after the block, and so ends it
        yield KubeProxy(process)
    assert process.returncode == 0
