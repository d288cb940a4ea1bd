# SPDX-License-Identifier: Apache-2.0

"""The parts of a Kubernetes controller that need no I/O: work queue, rate limiter, leader election."""
