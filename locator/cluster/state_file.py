"""The last view of a live cluster, kept in a folder, so that a start need not wait for the API server.

What cannot be written or read is reported and passed over: it is never a reason not to answer.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from locator.api import packing
from locator.model import Object

log = logging.getLogger("topodns")

NAME = "view"
AHEAD_SECONDS = 60.0  # that a file may be younger than now: clocks differ; beyond that nobody knows how old it is


class StateFile:
    """The file in *folder* that holds the view of one *cluster*: objects of *kinds*, at most *max_age* seconds old.

    Its modification time is when the view was last known to be true.
    """

    def __init__(self, folder: str, *, cluster: str, kinds: Sequence[type[Object]], max_age: float) -> None:
        self._path = Path(folder) / NAME
        self._unfinished = self._path.with_suffix(".new")
        self._cluster = cluster
        self._kinds = tuple(kinds)
        self._max_age = max_age
        self._failed = ""

    def load(self) -> list[Object] | None:
        """Return the objects kept, None where there are none that can be believed. Logs why."""
        try:
            age = time.time() - self._path.stat().st_mtime
            if not -AHEAD_SECONDS <= age <= self._max_age:
                log.warning(
                    "%s: %d s old, expected at most %d s (--state-max-age); it is passed over",
                    self._path, age, self._max_age,
                )  # fmt: skip
                return None
            objects = packing.unpacked(self._path.read_bytes(), cluster=self._cluster, kinds=self._kinds)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.error("%s: %s, expected a view kept earlier; it is passed over", self._path, error.strerror)
            return None
        except packing.Unusable as error:
            log.error("%s: %s; it is passed over", self._path, error)
            return None
        log.info("answering from the view in %s, %d s old, until the cluster has been listed", self._path, age)
        return objects

    def save(self, objects: Sequence[Object], seen: float) -> bool:
        """Keep *objects*, known to be true at *seen* (seconds since 1970); return whether that went well, else log."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(self._unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                for part in packing.packed(objects, cluster=self._cluster, kinds=self._kinds):
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.utime(self._unfinished, (seen, seen))
            os.replace(self._unfinished, self._path)
        except OSError as error:
            self._report(error)
            return False
        self._failed = ""
        return True

    def touch(self, seen: float) -> bool:
        """Note that what is kept was true at *seen* (seconds since 1970); return whether anything is kept."""
        try:
            os.utime(self._path, (seen, seen))
        except OSError:
            return False
        return True

    def _report(self, error: OSError) -> None:
        """Log a failure once, not each half minute."""
        if self._failed != str(error):
            self._failed = str(error)
            log.error(
                "--state-dir: %s: %s, expected a folder that can be written; the view is not kept",
                self._path.parent, error.strerror,
            )  # fmt: skip
