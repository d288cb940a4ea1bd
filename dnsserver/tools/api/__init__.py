# SPDX-License-Identifier: Apache-2.0

"""EDGE: the HTTP API, ``/api/v1``."""
