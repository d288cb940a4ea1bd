# SPDX-License-Identifier: Apache-2.0

"""Who would get what: the decisions of a server for all clients of a Service at once. Pure."""
