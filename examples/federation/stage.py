# SPDX-License-Identifier: Apache-2.0

"""A federation API and its clusters, as real control planes, with topodns, and what a control plane lacks.

There are no machines: this plays the kubelets and the cloud of each cluster. Its pods run nothing, and nothing listens
at its load balancers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from tests.kit import go_programs
from tests.kit.api_objects import load_balancer_status
from tests.kit.federation import NAMES, ZONE, Federation, running_federation
from tests.kit.kube import ApiError, Item
from tests.kit.topodns_process import Server

API = "federation"  # the context of the federation API
SECONDS = 0.5  # between two looks at pods and Services
NETWORK = "203.0.113"  # of load balancers; for documentation (RFC 5737)


class Stage:
    """A running federation; ``kubeconfig`` has a context for the federation API, and one for each cluster."""

    def __init__(self, folder: Path, federation: Federation, server: Server) -> None:
        self._federation, self.server = federation, server
        self.kubeconfig, self.programs = folder / "kubeconfig", go_programs.control_plane()
        planes = {API: federation.api.plane, **{name: member.plane for name, member in federation.clusters.items()}}
        merged: Item = {"apiVersion": "v1", "kind": "Config", "current-context": API, "contexts": []}
        for name, plane in planes.items():
            (folder / f"{name}.pid").write_text(str(plane.pid))
            config = yaml.safe_load(plane.kubeconfig.read_text())
            for section, key in (("clusters", "cluster"), ("users", "user")):
                merged.setdefault(section, []).append({"name": name, key: config[section][0][key]})
            merged["contexts"].append({"name": name, "context": {"cluster": name, "user": name, "namespace": "shop"}})
        self.kubeconfig.write_text(yaml.safe_dump(merged))
        self._ended = threading.Event()
        self._players = [threading.Thread(target=self._play, args=(name,), daemon=True) for name in NAMES]
        for player in self._players:
            player.start()

    def end(self) -> None:
        """Let kubelets and clouds do no more."""
        self._ended.set()
        for name, player in zip(NAMES, self._players, strict=True):
            self._federation.clusters[name].plane.wake()  # or what it is asked would hold up the end
            player.join()

    def _play(self, name: str) -> None:
        api = self._federation.clusters[name].plane.api
        while not self._ended.wait(SECONDS):
            try:
                for space in api.items("Namespace"):
                    if not space["metadata"]["name"].startswith("kube-"):
                        self._federation.run_pods(space["metadata"]["name"], name)
                for number, service in enumerate(api.items("Service"), 1):
                    if service["spec"]["type"] == "LoadBalancer" and not service["status"]["loadBalancer"]:
                        address = f"{NETWORK}.{10 * (1 + NAMES.index(name)) + number}"
                        api.patch_status(service | {"kind": "Service"}, load_balancer_status([address]))
            except (OSError, ApiError):  # the cluster is away, or something has gone meanwhile
                continue


@contextmanager
def staged(folder: Path, *, listen: str) -> Iterator[Stage]:
    """Run a federation, with its files in *folder*, until the block ends. topodns answers at *listen*."""
    with ExitStack() as stack:
        federation = stack.enter_context(running_federation(folder, controllers="namespace-controller"))
        own, *others = federation.clusters
        clusters = [f"--cluster={name}={federation.clusters[name].plane.kubeconfig}" for name in others]
        flags = [f"--kubeconfig={federation.clusters[own].plane.kubeconfig}", f"--cluster-name={own}", *clusters]
        federation.controller()
        serve = ["serve", *flags, f"--federation={ZONE}", f"--listen={listen}", "--http=127.0.0.1:0", "--upstream=off"]
        server = Server(serve)
        stack.callback(server.end)
        stage = Stage(folder, federation, server.started())
        stack.callback(stage.end)
        yield stage
