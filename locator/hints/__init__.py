"""Which topology hints the endpoints of EndpointSlices should carry, so that kube-proxy does what topodns does."""
