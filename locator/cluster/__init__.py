# SPDX-License-Identifier: Apache-2.0

"""The edge of ``locator``: everything that reads files or talks to Kubernetes."""
