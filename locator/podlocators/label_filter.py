# SPDX-License-Identifier: Apache-2.0

"""Which labels of a Node its pods' PodLocators get."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate

from locator.model import SUCCESSORS
from locator.podlocators.objects import LabelledNode

# Kubernetes renamed some labels. A glob that matches one name of such a label selects it under both.
_OTHER_NAME = {**SUCCESSORS, **{new: old for old, new in SUCCESSORS.items()}}


class LabelFilter:
    """Selects node labels for PodLocators: those whose key matches one of *globs*, all labels if there are no globs."""

    def __init__(self, globs: Iterable[str] = ()) -> None:
        patterns = [translate(glob) for glob in globs]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def select(self, node: LabelledNode) -> dict[str, str]:
        """Return the labels of *node* that pass the filter."""
        if self._pattern is None:
            return node.labels
        return {key: value for key, value in node.labels.items() if self._passes(key)}

    def _passes(self, key: str) -> bool:
        names = (key, _OTHER_NAME.get(key, key))
        return self._pattern is None or any(map(self._pattern.match, names))
