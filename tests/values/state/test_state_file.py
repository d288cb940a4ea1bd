# SPDX-License-Identifier: Apache-2.0

"""The state file: whole or not used, never too old, never another cluster's."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import pickle
import re
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from locator.cluster.state_file import StateFile
from locator.endpoints import compact
from locator.model import KINDS, EndpointSlice, Finding, Node, Object, Pod
from locator.state import saved_view
from locator.state.saved_view import CHECKSUM, MAGIC, SavedIdentity, Unusable
from locator.state.snapshot import Snapshot
from locator.state.store import Store, StoreOptions
from tests.kit import api_objects, random_cluster
from tests.kit.in_memory import NOW, dump_of, take_in

CLUSTER = "https://10.96.0.1:443 of the tests"
ORIGIN = SavedIdentity(CLUSTER, tuple(kind.__name__ for kind in KINDS), "with the defaults")


def view_of(seed: int) -> tuple[Snapshot, list[Object]]:
    store = Store(StoreOptions(pod_locators=True, pod_names=True))
    take_in(store, dump_of(api_objects.listed(random_cluster.world(seed).items)).objects)
    return store.publish(NOW), store.all_objects()


SNAPSHOT, WORLD = view_of(3)


def octets(snapshot: Snapshot = SNAPSHOT, objects: Sequence[Object] = WORLD) -> bytes:
    file = io.BytesIO()
    saved_view.write(file, snapshot, objects, ORIGIN)
    return file.getvalue()


OCTETS = octets()


def saved(folder: Path, *, kinds: Sequence[type[Object]] = KINDS, max_age: float = 60, **origin: str) -> StateFile:
    origin = {"cluster": CLUSTER, "settings": "", **origin}
    return StateFile(str(folder), cluster=origin["cluster"], kinds=kinds, settings=origin["settings"], max_age=max_age)


def loaded(file: StateFile) -> list[Object] | None:
    view = file.load()
    return None if view is None else file.objects_in(view)


def by_key(objects: Sequence[Object]) -> dict[tuple[str, str], Object]:
    return {(type(obj).__name__, obj.key): obj for obj in objects}


@settings(max_examples=20)
@given(seed=st.integers(0, 500))
def test_what_is_kept_is_read_the_same(seed: int) -> None:
    """Nothing that an answer depends on is lost."""
    snapshot, objects = view_of(seed)
    view = saved_view.read(octets(snapshot, objects), ORIGIN)
    assert by_key(view.objects()) == by_key(objects)
    assert view.snapshot is not None and view.snapshot.findings == snapshot.findings
    assert view.snapshot.serial == NOW and view.snapshot.services.keys() == snapshot.services.keys()


def test_what_many_pods_have_in_common_is_one_object() -> None:
    """Also after it was read again: 150,000 copies of each text would take as much memory as all else of a pod."""
    pods = [Pod("shop", f"web-{number}", node="node-of-many-pods", owner="ReplicaSet/web-5d8") for number in range(2)]
    found = [item for item in saved_view.read(octets(SNAPSHOT, pods), ORIGIN).objects() if isinstance(item, Pod)]
    assert found == pods
    for part in ("namespace", "node", "phase", "owner"):
        assert getattr(found[0], part) is getattr(found[1], part)


def test_what_readers_added_is_not_kept() -> None:
    """A file has the same size however much has been asked of its snapshot."""
    assert any(service.endpoints for service in SNAPSHOT.services.values())
    assert octets() == OCTETS


@given(at=st.integers(0, len(OCTETS) - 1), change=st.none() | st.integers(1, 255))
def test_a_damaged_file_is_noticed(at: int, change: int | None) -> None:
    """A file in which an octet has changed, or that is cut off, is not used."""
    data = OCTETS[:at] if change is None else OCTETS[:at] + bytes([OCTETS[at] ^ change]) + OCTETS[at + 1 :]
    with pytest.raises(Unusable):
        saved_view.read(data, ORIGIN)


class Hostile:
    """What runs a program when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("made-by-a-file",)


def crafted(*parts: object, with_snapshot: bool) -> bytes:
    """Return a file with a right checksum, and with *parts* in place of all parts, or of those behind the snapshot."""
    data = octets(SNAPSHOT, [])
    slices = [part for service in SNAPSHOT.services.values() for part in service.slices]
    tail = pickle.dumps(bytes(len(slices)), pickle.HIGHEST_PROTOCOL) + pickle.dumps([], pickle.HIGHEST_PROTOCOL)
    assert data[:-CHECKSUM].endswith(tail)
    begin = data[: -CHECKSUM - len(tail)] if with_snapshot else data[: header_end(data)]
    return with_checksum(begin + b"".join(map(pickle.dumps, parts)))


@pytest.mark.parametrize("with_snapshot", [False, True], ids=["as-the-snapshot", "among-the-objects"])
def test_a_file_cannot_name_other_code(with_snapshot: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write the file can change answers, but not run programs."""
    monkeypatch.chdir(tmp_path)
    data = crafted(Hostile(), with_snapshot=with_snapshot)
    with pytest.raises(Unusable):
        saved_view.read(data, ORIGIN).objects()
    assert not list(tmp_path.iterdir())


NO_VIEWS: list[tuple[str, tuple[object, ...], bool]] = [
    ("no-snapshot", ([],), False),
    ("nothing", (), False),
    ("no-octets", (1, []), True),
    ("no-list", (b"", 1), True),
    ("no-packed-objects", (b"", [b"?"]), True),
    ("objects-of-no-octets", (b"", [1]), True),
    ("no-objects", (b"",), True),
]


@pytest.mark.parametrize(("parts", "with_snapshot"), [row[1:] for row in NO_VIEWS], ids=[row[0] for row in NO_VIEWS])
def test_what_is_no_view_is_noticed(parts: tuple[object, ...], with_snapshot: bool) -> None:
    """Whatever a file has under a right checksum, the server starts."""
    with pytest.raises(Unusable):
        saved_view.read(crafted(*parts, with_snapshot=with_snapshot), ORIGIN).objects()


def test_slices_that_are_gone_stay_gone() -> None:
    """The objects may be newer than the snapshot: a slice of the snapshot counts only if it is among them."""
    slices = [item for item in WORLD if isinstance(item, EndpointSlice)]
    changed = replace(slices[0], endpoints=compact(()))
    objects = [changed, *slices[2:], *(item for item in WORLD if not isinstance(item, EndpointSlice))]
    read = saved_view.read(octets(SNAPSHOT, objects), ORIGIN).objects()
    assert len(read) == len(objects) and by_key(read) == by_key(objects)


@pytest.mark.parametrize(
    ("settings", "what"),
    [("one", "answering from its snapshot even so"), ("another", "ignoring the file")],
    ids=["with-its-snapshot", "without"],
)
def test_objects_that_cannot_be_read_are_reported(
    settings: str, what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says whether the file is in use."""
    saved(tmp_path, settings="one").save(SNAPSHOT, WORLD, time.time())
    path = tmp_path / "view"
    path.write_bytes(with_checksum(path.read_bytes()[: -CHECKSUM - 1000]))
    assert loaded(saved(tmp_path, settings=settings)) is None
    assert caplog.text.endswith(f"{what}\n")


def test_a_field_of_another_type_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version in which a field has the same name, but another type, would take its value for something else."""
    other = msgspec.defstruct("Finding", [(name, list[str]) for name in Finding.__struct_fields__])
    structs = tuple(other if struct is Finding else struct for struct in saved_view.STRUCTS)
    monkeypatch.setattr(saved_view, "STRUCTS", structs)
    with pytest.raises(Unusable, match="another version"):
        saved_view.read(OCTETS, ORIGIN)


def header_end(data: bytes) -> int:
    start = len(MAGIC) + saved_view.LENGTH
    return start + int.from_bytes(data[len(MAGIC) : start])


def with_checksum(content: bytes) -> bytes:
    return content + hashlib.sha256(content).digest()


def test_a_view_is_read_again(tmp_path: Path) -> None:
    """The next start reads the state file; the folder is created, readable for its owner only."""
    assert saved(tmp_path / "state").save(SNAPSHOT, WORLD, time.time())
    read = loaded(saved(tmp_path / "state"))
    assert read is not None and by_key(read) == by_key(WORLD)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["view"]
    assert stat.S_IMODE((tmp_path / "state" / "view").stat().st_mode) == 0o600


def test_with_other_settings_only_the_objects_are_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They would make another snapshot of the same objects, and the log says why the start takes longer."""
    caplog.set_level(logging.INFO)
    saved(tmp_path, settings="one").save(SNAPSHOT, WORLD, time.time())
    same = saved(tmp_path, settings="one").load()
    assert "other settings" not in caplog.text
    other = saved(tmp_path, settings="another").load()
    assert "written with other settings" in caplog.text
    assert same is not None and same.snapshot is not None
    assert other is not None and other.snapshot is None and by_key(other.objects()) == by_key(WORLD)


def foreign(path: Path) -> None:
    path.write_bytes(b"something else\n" * 100)


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def old(path: Path) -> None:
    os.utime(path, (time.time() - 61,) * 2)


def future(path: Path) -> None:
    os.utime(path, (time.time() + 1000,) * 2)


def older_version(path: Path) -> None:
    """Write the file as another version with other records would, with the right checksum."""
    content = path.read_bytes()[:-CHECKSUM]
    path.write_bytes(with_checksum(re.sub(rb"[0-9a-f]{16}", b"0" * 16, content, count=1)))


def unreadable(path: Path) -> None:
    """Write a file of this version that ends behind its header, with the right checksum."""
    data = path.read_bytes()
    path.write_bytes(with_checksum(data[: header_end(data)]))


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (foreign, "not a state file"),
        (damaged, "damaged"),
        (old, "61 s old, expected at most 60 s"),
        (future, "s old, expected at most 60 s"),
        (older_version, "written by another version"),
        (unreadable, "written by another version"),
        (folder, "Is a directory"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_cannot_be_believed_is_reported_and_passed_over(
    change: object, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unusable file is named, with the reason, and the server starts without it."""
    now = int(time.time())
    monkeypatch.setattr(time, "time", lambda: now)  # however long the test takes, what is 61 s old stays so
    saved(tmp_path).save(SNAPSHOT, WORLD, time.time())
    assert callable(change)
    change(tmp_path / "view")
    assert saved(tmp_path).load() is None
    assert str(tmp_path / "view") in caplog.text and why in caplog.text


@pytest.mark.parametrize(
    ("reader", "why"),
    [
        ({"cluster": "https://10.96.0.1:443 of others"}, "state of another cluster"),
        ({"kinds": (Pod, Node)}, "written with other settings: without Pod"),
    ],
    ids=["cluster", "kinds"],
)
def test_the_view_of_another_cluster_or_of_fewer_kinds_is_passed_over(
    reader: dict[str, object], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A kind that the file lacks is not known to be empty."""
    saved(tmp_path, kinds=(Node,)).save(SNAPSHOT, [obj for obj in WORLD if isinstance(obj, Node)], time.time())
    assert saved(tmp_path, **{"kinds": (Node,), **reader}).load() is None  # type: ignore[arg-type]
    assert why in caplog.text


def test_a_view_that_is_still_true_is_young(tmp_path: Path) -> None:
    """A state's age counts from the last contact, not from when it was written."""
    saved(tmp_path).save(SNAPSHOT, WORLD, time.time() - 100)
    assert saved(tmp_path).load() is None
    assert saved(tmp_path).touch(time.time() - 10)
    assert saved(tmp_path).load() is not None
    assert saved(tmp_path, max_age=5).load() is None
    assert not saved(tmp_path / "nowhere").touch(time.time())


def test_a_folder_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server answers on, and does not log it every half minute."""
    (tmp_path / "state").write_text("a file stands where the folder should be")
    keeper = saved(tmp_path / "state")
    with caplog.at_level(logging.ERROR):
        assert not keeper.save(SNAPSHOT, WORLD, time.time())
        assert not keeper.save(SNAPSHOT, WORLD, time.time())
    (record,) = caplog.records
    assert "--state-dir" in record.getMessage() and "expected a folder that can be written" in record.getMessage()


def test_an_earlier_view_survives_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced as a whole."""
    keeper = saved(tmp_path)
    keeper.save(SNAPSHOT, WORLD, time.time())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert not keeper.save(SNAPSHOT, [], time.time())
    read = loaded(keeper)
    assert read is not None and len(read) == len(WORLD)


def test_a_save_waits_for_one_that_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last save, at the end, may meet one that was abandoned: both would write into one file."""
    keeper, meeting, met = saved(tmp_path), threading.Barrier(2), []

    def meet(descriptor: int) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)
            met.append(descriptor)

    monkeypatch.setattr(os, "fsync", meet)
    saves = [threading.Thread(target=keeper.save, args=(SNAPSHOT, WORLD, time.time())) for _ in range(2)]
    for save in saves:
        save.start()
    for save in saves:
        save.join()
    assert not met
    read = loaded(keeper)
    assert read is not None and len(read) == len(WORLD)
