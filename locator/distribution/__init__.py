# SPDX-License-Identifier: Apache-2.0

"""Federated creation: which objects of a federation API every cluster gets, and what goes back there. Pure."""
