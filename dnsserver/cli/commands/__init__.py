# SPDX-License-Identifier: Apache-2.0

"""The commands of ``topodns``. Each has a module of its name, here or in ``about``.

``dispatch.COMMANDS`` lists them.
"""
