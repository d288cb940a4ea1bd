# SPDX-License-Identifier: Apache-2.0

"""Which Services topodns serves."""

from __future__ import annotations

from msgspec import Struct

from locator.labels import Selector
from locator.model import Namespace, Service


class Scope(Struct, frozen=True):
    """Limits which Services are served (``--serve-namespace``, ``--namespace-selector``, ``--service-selector``).

    No *namespaces* means all of them; a selector that is None matches everything.
    """

    namespaces: frozenset[str] = frozenset()
    namespace_selector: Selector | None = None
    service_selector: Selector | None = None

    @property
    def exposes_all(self) -> bool:
        """Whether every namespace is served."""
        return not self.namespaces and self.namespace_selector is None

    def exposes(self, name: str, namespace: Namespace | None) -> bool:
        """Whether the namespace called *name* is served. *namespace* is its object; without it, no selector matches."""
        if self.namespaces and name not in self.namespaces:
            return False
        selector = self.namespace_selector
        return selector is None or (namespace is not None and selector.matches(namespace.labels))

    def serves(self, service: Service) -> bool:
        """Whether a Service of an exposed namespace is served."""
        return self.service_selector is None or self.service_selector.matches(service.labels)

    def relevant_labels(self, labelled: Namespace | Service) -> dict[str, str]:
        """Return the labels of a namespace or Service that decide whether it is served."""
        selector = self.namespace_selector if isinstance(labelled, Namespace) else self.service_selector
        return {} if selector is None else selector.relevant(labelled.labels)
