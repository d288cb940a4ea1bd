# SPDX-License-Identifier: Apache-2.0

"""EDGE: the console, pages for people at ``/`` of ``--http``."""
