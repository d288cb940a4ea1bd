"""The state file: the objects of a live cluster on disk, so that a restart need not wait for the API server.

A state file that cannot be read or written is logged and ignored. It never keeps topodns from answering.
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
AHEAD_SECONDS = 60.0  # a file may be from the future by this much, since clocks differ; beyond, its age is unknown


class StateFile:
    """The state file in *folder* with the objects of *kinds* in one *cluster* (``ApiClient.identity``).

    Its modification time is when the objects were last known to be up to date, at most *max_age* seconds ago.
    """

    def __init__(self, folder: str, *, cluster: str, kinds: Sequence[type[Object]], max_age: float) -> None:
        self._path = Path(folder) / NAME
        self._unfinished = self._path.with_suffix(".new")
        self._cluster = cluster
        self._kinds = tuple(kinds)
        self._max_age = max_age
        self._logged = ""

    def load(self) -> list[Object] | None:
        """Return the saved objects. None if there is no state file, or none that can be trusted; then logs why."""
        try:
            age = time.time() - self._path.stat().st_mtime
            if not -AHEAD_SECONDS <= age <= self._max_age:
                log.warning(
                    "%s: %d s old, expected at most %d s (--state-max-age); ignoring the file",
                    self._path, age, self._max_age,
                )  # fmt: skip
                return None
            objects = packing.unpacked(self._path.read_bytes(), cluster=self._cluster, kinds=self._kinds)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.error("%s: %s, expected a state file; ignoring it", self._path, error.strerror)
            return None
        except packing.Unusable as error:
            log.error("%s: %s; ignoring the file", self._path, error)
            return None
        log.info("answering from the state file %s, %d s old, until the cluster has been listed", self._path, age)
        return objects

    def save(self, objects: Sequence[Object], seen: float) -> bool:
        """Save *objects*, which were up to date at *seen* (seconds since 1970). Return False and log if that fails."""
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
        self._logged = ""
        return True

    def touch(self, seen: float) -> bool:
        """Mark the saved objects as up to date at *seen* (seconds since 1970). Return False if there is no file."""
        try:
            os.utime(self._path, (seen, seen))
        except OSError:
            return False
        return True

    def _report(self, error: OSError) -> None:
        """Log a failure once, not at every try."""
        if self._logged != str(error):
            self._logged = str(error)
            log.error(
                "--state-dir: %s: %s, expected a folder that can be written; no state is saved",
                self._path.parent, error.strerror,
            )  # fmt: skip
