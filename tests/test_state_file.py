"""The state file: whole or not used, never too old, never another cluster's."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.api import packing
from locator.cluster.state_file import StateFile
from locator.model import KINDS, Node, Object, Pod
from tests import api_objects, clusters
from tests.in_memory import dump_of

CLUSTER = "https://10.96.0.1:443 of the tests"
WORLD = dump_of(api_objects.listed(clusters.world(3).items)).objects


def octets(objects: Sequence[Object] = WORLD, kinds: Sequence[type[Object]] = KINDS) -> bytes:
    return b"".join(packing.packed(objects, cluster=CLUSTER, kinds=kinds))


def kept(
    folder: Path, *, cluster: str = CLUSTER, kinds: Sequence[type[Object]] = KINDS, max_age: float = 60
) -> StateFile:
    return StateFile(str(folder), cluster=cluster, kinds=kinds, max_age=max_age)


def by_key(objects: Sequence[Object]) -> dict[tuple[str, str], Object]:
    return {(type(obj).__name__, obj.key): obj for obj in objects}


@given(seed=st.integers(0, 500))
def test_what_is_packed_is_unpacked_the_same(seed: int) -> None:
    """Nothing that an answer depends on is lost."""
    objects = dump_of(api_objects.listed(clusters.world(seed).items)).objects
    read = packing.unpacked(octets(objects), cluster=CLUSTER, kinds=KINDS)
    assert by_key(read) == by_key(objects)


@given(at=st.integers(0, len(octets()) - 1), change=st.integers(1, 255))
def test_a_changed_octet_is_noticed(at: int, change: int) -> None:
    """A damaged file is not used."""
    data = bytearray(octets())
    data[at] ^= change
    with pytest.raises(packing.Unusable):
        packing.unpacked(bytes(data), cluster=CLUSTER, kinds=KINDS)


@given(length=st.integers(0, len(octets()) - 1))
def test_a_cut_file_is_noticed(length: int) -> None:
    """A truncated file is not used."""
    with pytest.raises(packing.Unusable):
        packing.unpacked(octets()[:length], cluster=CLUSTER, kinds=KINDS)


def test_a_view_is_read_again(tmp_path: Path) -> None:
    """The next start reads the state file; the folder is created, readable for its owner only."""
    assert kept(tmp_path / "state").save(WORLD, time.time())
    read = kept(tmp_path / "state").load()
    assert read is not None and by_key(read) == by_key(WORLD)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["view"]
    assert stat.S_IMODE((tmp_path / "state" / "view").stat().st_mode) == 0o600


def foreign(path: Path) -> None:
    path.write_bytes(b"something else\n" * 100)


def damaged(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + b"!" + data[len(data) // 2 + 1 :])


def old(path: Path) -> None:
    os.utime(path, (time.time() - 61,) * 2)


def future(path: Path) -> None:
    os.utime(path, (time.time() + 1000,) * 2)


def older_version(path: Path) -> None:
    """Write the file as another version with other records would, with the right checksum."""
    data = path.read_bytes()
    begun, checksum = len(packing.MAGIC), packing.LENGTH + hashlib.sha256().digest_size
    parts = re.sub(rb"[0-9a-f]{16}", b"0" * 16, data[begun:-checksum], count=1)
    path.write_bytes(packing.MAGIC + parts + bytes(packing.LENGTH) + hashlib.sha256(parts).digest())


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
    kept(tmp_path).save(WORLD, time.time())
    assert callable(change)
    change(tmp_path / "view")
    assert kept(tmp_path).load() is None
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
    kept(tmp_path, kinds=(Node,)).save([obj for obj in WORLD if isinstance(obj, Node)], time.time())
    assert kept(tmp_path, **{"kinds": (Node,), **reader}).load() is None  # type: ignore[arg-type]
    assert why in caplog.text


def test_a_view_that_is_still_true_is_young(tmp_path: Path) -> None:
    """A state's age counts from the last contact, not from when it was written."""
    kept(tmp_path).save(WORLD, time.time() - 100)
    assert kept(tmp_path).load() is None
    assert kept(tmp_path).touch(time.time() - 10)
    assert kept(tmp_path).load() is not None
    assert kept(tmp_path, max_age=5).load() is None
    assert not kept(tmp_path / "nowhere").touch(time.time())


def test_a_folder_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server answers on, and does not log it every half minute."""
    (tmp_path / "state").write_text("a file stands where the folder should be")
    keeper = kept(tmp_path / "state")
    with caplog.at_level(logging.ERROR):
        assert not keeper.save(WORLD, time.time())
        assert not keeper.save(WORLD, time.time())
    (record,) = caplog.records
    assert "--state-dir" in record.getMessage() and "expected a folder that can be written" in record.getMessage()


def test_an_earlier_view_survives_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced as a whole."""
    keeper = kept(tmp_path)
    keeper.save(WORLD, time.time())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert not keeper.save([], time.time())
    read = keeper.load()
    assert read is not None and len(read) == len(WORLD)
