# SPDX-License-Identifier: Apache-2.0

"""The state file: the view of a live cluster on disk, so that a restart need not wait for the API server.

A state file that cannot be read or written is logged and ignored. It never keeps topodns from answering.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from locator.model import Object
from locator.state import saved_view
from locator.state.saved_view import SavedIdentity, SavedView, Unusable
from locator.state.snapshot import Snapshot

log = logging.getLogger("topodns")

FILE_NAME = "view"

AHEAD_SECONDS = 60.0  # a file may be from the future by this much, since clocks differ; beyond, its age is unknown


class StateFile:
    """The state file *name* in *folder* with the view of *kinds* in one *cluster* (``ApiClient.identity``).

    Its modification time is when the objects were last known to be up to date, at most *max_age* seconds ago.
    *settings* are those of the store: with others, only the objects are used.
    """

    def __init__(
        self,
        folder: str,
        *,
        name: str = FILE_NAME,
        cluster: str,
        kinds: Sequence[type[Object]],
        settings: str,
        max_age: float,
    ) -> None:
        self._path = Path(folder) / name
        self._unfinished = self._path.with_suffix(".new")
        self._origin = SavedIdentity(cluster, tuple(kind.__name__ for kind in kinds), settings)
        self._max_age = max_age
        self.seen = 0.0
        """When the view that ``load`` returned was up to date (seconds since 1970)."""
        self._logged = ""
        self._saving = threading.Lock()  # a save at the end may meet one that was abandoned, but still runs

    def load(self) -> SavedView | None:
        """Return the saved view. None if there is no state file, or none that can be trusted; then logs why."""
        try:
            self.seen = self._path.stat().st_mtime
            age = time.time() - self.seen
            if not -AHEAD_SECONDS <= age <= self._max_age:
                log.warning(
                    "%s: %d s old, expected at most %d s (--state-max-age); ignoring the file",
                    self._path, age, self._max_age,
                )  # fmt: skip
                return None
            saved = saved_view.read(self._path.read_bytes(), self._origin)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.error("%s: %s, expected a state file; ignoring it", self._path, error.strerror)
            return None
        except Unusable as error:
            log.error("%s: %s; ignoring the file", self._path, error)
            return None
        if saved.snapshot is None:
            log.info("%s: written with other settings, or by another version; reading its objects first", self._path)
        log.info("answering from the state file %s, %d s old, until the cluster has been listed", self._path, age)
        return saved

    def objects_in(self, saved: SavedView) -> list[Object] | None:
        """Return the objects of a view that ``load`` returned. Return None and log if that fails."""
        try:
            return saved.objects()
        except Unusable as error:
            meanwhile = "ignoring the file" if saved.snapshot is None else "answering from its snapshot even so"
            log.error("%s: its objects: %s; %s", self._path, error, meanwhile)
            return None

    def save(self, snapshot: Snapshot, objects: Sequence[Object], seen: float) -> bool:
        """Save a view that was up to date at *seen* (seconds since 1970). Return False and log if that fails.

        The objects may be newer than the snapshot.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._saving:
                with open(os.open(self._unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                    saved_view.write(file, snapshot, objects, self._origin)
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
