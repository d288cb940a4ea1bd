# SPDX-License-Identifier: Apache-2.0

"""The JSON of Kubernetes objects and the list/watch protocol, without I/O."""
