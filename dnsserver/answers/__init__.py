# SPDX-License-Identifier: Apache-2.0

"""Decides the answer to each query: which records a client gets, and why."""
