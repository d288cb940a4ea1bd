# SPDX-License-Identifier: Apache-2.0

"""Compares the answers of topodns and CoreDNS to the same questions about the same real cluster.

``cluster`` fills an API server, ``asking`` makes the questions and asks both servers, ``differences`` is the table of
intended differences. ``docs/pages/make_pages.py`` prints that table as documentation.
"""
