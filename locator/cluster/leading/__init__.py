# SPDX-License-Identifier: Apache-2.0

"""EDGE: what one replica writes to the API server while it leads."""
