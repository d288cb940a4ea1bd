# SPDX-License-Identifier: Apache-2.0

"""EDGE: puts the programs together: the server, the controller, the webhook and the console."""
