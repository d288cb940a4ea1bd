# SPDX-License-Identifier: Apache-2.0

"""Lists and watches of the API server, without I/O: what to ask next, and what the answers mean."""
