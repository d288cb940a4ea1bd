# SPDX-License-Identifier: Apache-2.0

"""EDGE: receives queries from sockets, and sends the replies."""
