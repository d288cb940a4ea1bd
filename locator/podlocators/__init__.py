# SPDX-License-Identifier: Apache-2.0

"""Which PodLocators should exist for Pods and Nodes, and the writes that create, correct and delete them."""
