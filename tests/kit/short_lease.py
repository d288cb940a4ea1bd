# SPDX-License-Identifier: Apache-2.0

"""Short times for a Lease, so that a test does not wait long until another replica follows a killed one."""

from __future__ import annotations

from locator.control.lease import LeaderElection

LEASE = {"duration": 4.0, "deadline": 3.0, "retry": 0.5}  # seconds


def shorten_lease() -> None:
    """Let the replicas of this process take the Lease over from one that was killed, within seconds."""
    defaults = LeaderElection.__init__.__kwdefaults__
    assert defaults is not None and LEASE.keys() <= defaults.keys()
    defaults.update(LEASE)
