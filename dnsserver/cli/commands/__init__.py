# SPDX-License-Identifier: Apache-2.0

"""The commands of ``topodns``. Each has a module of its name, and a row of ``dispatch.COMMANDS``."""
