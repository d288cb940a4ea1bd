# SPDX-License-Identifier: Apache-2.0

"""Tells listeners of each answer as it is sent, and costs nothing while there is none."""
