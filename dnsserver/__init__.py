# SPDX-License-Identifier: Apache-2.0

"""The DNS server: answers queries from the cluster snapshots that ``locator`` builds."""

__version__ = "0.1.0"
