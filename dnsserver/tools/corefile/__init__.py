# SPDX-License-Identifier: Apache-2.0

"""Forwarders in front of topodns: prints their stub blocks and checks their Corefiles."""
