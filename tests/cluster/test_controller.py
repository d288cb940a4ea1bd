# SPDX-License-Identifier: Apache-2.0

"""The controller on a real control plane: it keeps PodLocators and the status of ServicePolicies up to date.

Only one replica writes.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from locator.cluster.leading.elector import boot_seconds
from tests.kit import api_objects
from tests.kit.api_objects import HOSTNAME, ZONE, namespace, node
from tests.kit.controller_process import ALONE, SHORT, Controlling, assert_in_turn, controlling, until_true
from tests.kit.kube import ApiError, ControlPlane, Item
from tests.kit.proxy import Proxy
from tests.kit.this_machine import ROOT

SPACE = "controller"
CRD, POLICY_CRD = (
    ROOT / "manifests" / "chart" / "files" / kind / f"{kind}.yaml" for kind in ("podlocators", "servicepolicies")
)
NODES = [node(f"ctl-{zone}", {ZONE: zone, HOSTNAME: f"ctl-{zone}", "rack": "7"}) for zone in "ab"]

Control = Callable[..., Controlling]


@pytest.fixture(scope="module")
def plane(frail_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Return a control plane with the CRD, two nodes and a namespace in it."""
    plane, items = frail_control_plane, [namespace(SPACE), *NODES]
    plane.kubectl("apply", "--server-side", "--validate=strict", "-f", str(CRD))
    plane.kubectl("wait", "--for=condition=Established", "-f", str(CRD))
    plane.api.create(*items)
    yield plane
    plane.api.delete(*reversed(items))
    plane.kubectl("delete", "-f", str(CRD))


@pytest.fixture
def control(plane: ControlPlane, tmp_path: Path) -> Iterator[Control]:
    """Return a function that starts a controller; controllers and pods end with the test."""
    lease = f"{SPACE}/of-{uuid.uuid4()}"

    def all_gone() -> bool:
        return not plane.api.items("PodLocator", SPACE)

    with ExitStack() as stack:

        def start(identity: str, times: Sequence[float] = ALONE, kubeconfig: Path | None = None) -> Controlling:
            arguments = (kubeconfig or plane.kubeconfig, identity, lease, times)
            return stack.enter_context(controlling(tmp_path, *arguments))

        yield start
        plane.api.delete(*(pod(item["metadata"]["name"]) for item in plane.api.items("Pod", SPACE)))
        until_true(all_gone, "PodLocators go with their pods")
    # Who saw a PodLocator's end before the pod's may have made it once more.
    until_true(all_gone, "PodLocators stay gone")


def pod(name: str, address: str = "10.77.0.1", on: str = "ctl-a") -> Item:
    return api_objects.pod(name, [address], on, where=SPACE)


def told(plane: ControlPlane, name: str) -> tuple[list[str], str, dict[str, str]] | None:
    """Return the content of a PodLocator, None if there is none."""
    try:
        item: Item = plane.api.request("GET", plane.api.path("PodLocator", SPACE, name))
    except ApiError as error:
        if error.status != 404:
            raise
        return None
    return [each["ip"] for each in item.get("ips", ())], item.get("nodeName", ""), item.get("nodeLabels", {})


def until_told(plane: ControlPlane, name: str, expected: object) -> None:
    until_true(lambda: told(plane, name) == expected, f"{name}: {expected}")


def labels_of(plane: ControlPlane, name: str) -> dict[str, str]:
    item = plane.api.request("GET", plane.api.path("Node", None, name))
    return dict(item["metadata"]["labels"])


def test_the_life_of_a_pod(plane: ControlPlane, control: Control) -> None:
    """A PodLocator appears with address and node, follows the address, is emptied at the pod's end, and goes."""
    one = control("one")
    one.until_leading()
    item = pod("life")
    status = item.pop("status")
    plane.api.create(item, pod("other"))
    until_told(plane, "other", (["10.77.0.1"], "ctl-a", labels_of(plane, "ctl-a")))
    assert told(plane, "life") is None
    plane.api.patch_status(item, status)
    until_told(plane, "life", (["10.77.0.1"], "ctl-a", labels_of(plane, "ctl-a")))
    made = plane.api.request("GET", plane.api.path("PodLocator", SPACE, "life"))
    uid = plane.api.request("GET", plane.api.path_of(item))["metadata"]["uid"]
    assert made["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Pod", "name": "life", "uid": uid}]
    both = [{"ip": "10.77.0.2"}, {"ip": "fd00:77::2"}]
    plane.api.patch_status(item, {"podIP": "10.77.0.2", "podIPs": both})
    until_told(plane, "life", (["10.77.0.2", "fd00:77::2"], "ctl-a", labels_of(plane, "ctl-a")))
    plane.api.request("DELETE", plane.api.path("PodLocator", SPACE, "other"))  # and what a hand does is undone
    until_told(plane, "other", (["10.77.0.1"], "ctl-a", labels_of(plane, "ctl-a")))
    plane.api.patch_status(item, {"phase": "Succeeded"})
    until_told(plane, "life", ([], "ctl-a", labels_of(plane, "ctl-a")))
    plane.api.delete(item)
    until_told(plane, "life", None)
    one.daemon.end()  # it has noted everything by then
    patched = [write.status for write in one.writes() if write.method == "PATCH" and write.path.endswith("/life")]
    assert patched == [200, 200]  # who deletes it is a race between us and the garbage collector


def test_orphans_go_and_an_unchanged_cluster_is_not_written_to(plane: ControlPlane, control: Control) -> None:
    """After a time without leader, the first pass fixes everything and the second writes nothing."""
    plane.api.create(pod("kept"), pod("never-seen", "10.77.0.4"))
    plane.api.create(api_objects.pod_locator("orphan", SPACE, ["10.77.0.9"]))
    plane.api.create(api_objects.pod_locator("kept", SPACE, ["10.77.0.9"]))  # taken over by its pod
    one = control("one")
    until_told(plane, "kept", (["10.77.0.1"], "ctl-a", labels_of(plane, "ctl-a")))
    until_told(plane, "never-seen", (["10.77.0.4"], "ctl-a", labels_of(plane, "ctl-a")))
    until_told(plane, "orphan", None)
    one.daemon.end()
    two = control("two")
    two.until_leading()
    plane.api.create(pod("last", "10.77.0.5"))  # by the time that this is written, all else has been looked at
    until_told(plane, "last", (["10.77.0.5"], "ctl-a", labels_of(plane, "ctl-a")))
    two.daemon.end()  # it has noted everything by then
    assert [(write.method, write.status) for write in two.writes()] == [("POST", 200)]
    assert two.requests()[-1].holder == ""  # the Lease was given back, so nobody had to wait for it
    assert_in_turn(one, two)


def churn(plane: ControlPlane, round_: int) -> dict[str, tuple[str, str]]:
    """Change the cluster; return the current node of each pod."""
    names = [f"churn-{number}" for number in range(8)]
    for name in names[round_ % 4 :: 4]:
        if round_ >= 4:
            plane.api.delete(pod(name))
        plane.api.create(pod(name, f"10.77.{round_}.{names.index(name)}", f"ctl-{'ab'[round_ % 2]}"))
    plane.api.patch(NODES[0], {"metadata": {"labels": {"rack": str(round_)}}})
    pods = plane.api.items("Pod", SPACE)
    return {pod["metadata"]["name"]: (pod["status"]["podIP"], pod["spec"]["nodeName"]) for pod in pods}


def until_all_true(plane: ControlPlane, pods: dict[str, tuple[str, str]]) -> None:
    for name, (address, on) in pods.items():
        until_told(plane, name, ([address], on, labels_of(plane, on)))
    assert {item["metadata"]["name"] for item in plane.api.items("PodLocator", SPACE)} == set(pods)


def test_a_stopped_leader_writes_nothing_when_it_wakes(plane: ControlPlane, control: Control) -> None:
    """A process that was stopped for longer than its Lease does not finish its write."""
    one = control("one", times=SHORT)
    one.until_leading()
    two = control("two", times=SHORT)
    until_all_true(plane, churn(plane, 0))
    for round_ in (1, 2):
        leader, other = (one, two) if round_ == 1 else (two, one)
        leader.daemon.process.send_signal(signal.SIGSTOP)
        pods = churn(plane, round_)  # this is what it would have written
        until_all_true(plane, pods)
        before, woken = len(leader.noted()), boot_seconds()
        leader.daemon.process.send_signal(signal.SIGCONT)
        pods = churn(plane, round_ + 2)
        until_all_true(plane, pods)
        assert not leader.sent_without_lease(before, woken)  # the other may have been late in its turn
        until_true(other.writes, "the other notes what it wrote")
    assert_in_turn(one, two)


def test_a_leader_that_is_cut_off_is_followed(plane: ControlPlane, control: Control, tmp_path: Path) -> None:
    """A leader without a network loses the Lease; its late requests change nothing while another leads."""
    with Proxy(plane.port) as proxy:
        one = control("one", times=SHORT, kubeconfig=plane.kubeconfig_with(tmp_path / "by-proxy", port=proxy.port))
        one.until_leading()
        two = control("two", times=SHORT)
        until_all_true(plane, churn(plane, 0))
        proxy.hold()
        until_all_true(plane, churn(plane, 1))
        proxy.go_on()
        until_all_true(plane, churn(plane, 2))
        until_true(two.writes, "the other notes what it wrote")
        one.daemon.end()
    assert_in_turn(one, two)


def test_the_cluster_cleans_up_without_us(plane: ControlPlane, control: Control) -> None:
    """Kubernetes' garbage collector deletes a PodLocator by its owner reference."""
    one = control("one")
    plane.api.create(pod("left-behind"))
    until_told(plane, "left-behind", (["10.77.0.1"], "ctl-a", labels_of(plane, "ctl-a")))
    one.daemon.end()
    plane.api.delete(pod("left-behind"))
    until_told(plane, "left-behind", None)


# The status of ServicePolicies


@pytest.fixture
def policies(plane: ControlPlane) -> Iterator[None]:
    """Install the CRD of ServicePolicies, and a headless Service for them."""
    plane.kubectl("apply", "--server-side", "--validate=strict", "-f", str(POLICY_CRD))
    plane.kubectl("wait", "--for=condition=Established", "-f", str(POLICY_CRD))
    plane.api.create(WEB)
    yield
    plane.api.delete(WEB)
    plane.kubectl("delete", "-f", str(POLICY_CRD))  # and all policies


WEB = api_objects.service("web", where=SPACE, labels={"app": "web"})


def policy(name: str, key: str = ZONE, mode: str = "Required", app: str = "web") -> Item:
    return api_objects.service_policy(name, key, mode, where=SPACE, app=app)


def found(plane: ControlPlane, name: str) -> Item:
    item: Item = plane.api.request("GET", plane.api.path("ServicePolicy", SPACE, name))
    return item


def reasons(plane: ControlPlane, name: str) -> dict[str, str]:
    """Return the reason of each condition of a policy."""
    conditions = found(plane, name).get("status", {}).get("conditions", ())
    return {one["type"]: f"{one['status']} {one['reason']}" for one in conditions}


def until_constraining(plane: ControlPlane, name: str) -> None:
    wanted = {"Accepted": "True Accepted", "Effective": "True Constrains"}
    until_true(lambda: reasons(plane, name) == wanted, f"{name} constrains")


def test_the_status_of_policies(plane: ControlPlane, control: Control, policies: None) -> None:
    """The leader writes it once, follows what it depends on, and leaves it alone through all else and a restart."""
    invalid = policy("invalid")
    invalid["spec"]["serviceSelector"] = {"matchLabels": {"no key": "x"}}
    named = {
        "near": (policy("near"), "True Accepted", "True Constrains"),
        "invalid": (invalid, "False InvalidServicePolicy", "False NotAccepted"),
    }
    one = control("one")
    one.until_leading()
    plane.api.create(*(item for item, *_ in named.values()))
    for name, (_, accepted, effective) in named.items():
        expected = {"Accepted": accepted, "Effective": effective}
        until_true(lambda name=name, expected=expected: reasons(plane, name) == expected, f"{name}: {expected}")
    plane.kubectl("-n", SPACE, "wait", "--for=condition=Effective", "--timeout=10s", "servicepolicy/near")
    versions = {name: found(plane, name)["metadata"]["resourceVersion"] for name in named}

    plane.api.create(pod("unrelated"), api_objects.service("db", where=SPACE, labels={"app": "unrelated"}))
    plane.api.patch(NODES[0], {"metadata": {"labels": {"unrelated": "x"}}})
    plane.api.patch(WEB, {"metadata": {"annotations": {"unrelated": "x"}}})
    plane.api.create(policy("second", app="db"))
    until_true(lambda: reasons(plane, "second"), "what came last is written")
    one.daemon.end()
    two = control("two")
    two.until_leading()
    plane.api.create(policy("third"))
    until_constraining(plane, "third")  # by then, it has looked at all others
    assert {name: found(plane, name)["metadata"]["resourceVersion"] for name in named} == versions

    plane.api.patch(named["near"][0], {"spec": {"topology": {"mode": "Ignored"}}})
    off = {"Accepted": "True Accepted", "Effective": "False Ignored"}
    until_true(lambda: reasons(plane, "near") == off, "near is off")
    status = found(plane, "near")["status"]
    assert [status["observedGeneration"], *(one["observedGeneration"] for one in status["conditions"])] == [2, 2, 2]
    two.daemon.end()  # it has noted everything by then
    written = [
        write.path.removesuffix("/status").rpartition("/")[2] for write in two.writes() if "/servicepol" in write.path
    ]
    assert written == ["third", "near"]
    assert_in_turn(one, two)
    plane.api.delete(api_objects.service("db", where=SPACE))


def test_policies_may_come_later(plane: ControlPlane, control: Control, request: pytest.FixtureRequest) -> None:
    """A cluster without the CRD has PodLocators all the same, and once it is there, policies have a status."""
    one = control("one")
    plane.api.create(pod("without-the-crd"))
    until_told(plane, "without-the-crd", (["10.77.0.1"], "ctl-a", labels_of(plane, "ctl-a")))
    request.getfixturevalue("policies")
    plane.api.create(policy("later"))
    until_constraining(plane, "later")
    assert len([line for line in one.daemon.printed.read_text().splitlines() if "ServicePolicy: " in line]) == 1
