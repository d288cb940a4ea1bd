# SPDX-License-Identifier: Apache-2.0

"""``make demo``: a busy day on the example cluster, for the console, ``/metrics`` and ``topodns tail`` to show.

``day`` is what happens, ``cluster``, ``crowd`` and ``asking`` make it happen, ``server`` is the topodns that is told
and asked, and ``stage`` plays one on the other.
"""
