# SPDX-License-Identifier: Apache-2.0

"""EDGE: serves health and metrics over HTTP."""
