# SPDX-License-Identifier: Apache-2.0

"""Reads what ``topodns doctor`` looks at (a cluster, its replicas, their answers) and what ``simulate`` simulates."""
