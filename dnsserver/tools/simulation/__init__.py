# SPDX-License-Identifier: Apache-2.0

"""Who would get what: the decisions of a server for all clients of a Service at once. Pure."""

OVERLOAD, IDLE, UNMET = "overload", "idle", "unmet"  # what ``--fail-on`` takes
MAX_OVERLOAD = 1.5  # even shares: the default of what counts as overloaded
