# SPDX-License-Identifier: Apache-2.0

"""Settings of properties about whole clusters: an example that fails is reported as it was drawn.

To make it smaller would take minutes, and its seed tells enough. All else is as ``conftest`` has it.
"""

from __future__ import annotations

from hypothesis import Phase, settings

unshrunk = settings(report_multiple_bugs=False, phases=(Phase.explicit, Phase.generate))
