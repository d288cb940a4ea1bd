"""Label selectors as ``kubectl -l`` writes them, and which Services are served by them.

``app=web,tier in (front,back),!canary``: the grammar of the API's ``labelSelector`` parameter.
"""

from __future__ import annotations

from msgspec import Struct

from locator.labels import Selector as Selector
from locator.model import Namespace, Service


class Scope(Struct, frozen=True):
    """Which Services are served: those of some namespaces, if any are named, and those that selectors select."""

    namespaces: frozenset[str] = frozenset()
    namespace_selector: Selector | None = None
    service_selector: Selector | None = None

    def exposes(self, namespace: str, known: Namespace | None) -> bool:
        """Whether a namespace is served; *known* is its object, without which it has no labels to be selected by."""
        if self.namespaces and namespace not in self.namespaces:
            return False
        return self.namespace_selector is None or (known is not None and self.namespace_selector.matches(known.labels))

    def serves(self, service: Service) -> bool:
        """Whether a Service of an exposed namespace is served."""
        return self.service_selector is None or self.service_selector.matches(service.labels)

    def relevant_labels(self, each: Namespace | Service) -> dict[str, str]:
        """Return those labels of a namespace or Service on which this depends."""
        selector = self.namespace_selector if isinstance(each, Namespace) else self.service_selector
        return {} if selector is None else selector.relevant(each.labels)
