# SPDX-License-Identifier: Apache-2.0

"""Reading dumps, without trio: a server starts a process for each reading, and every import delays it."""
