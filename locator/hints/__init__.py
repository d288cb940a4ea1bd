# SPDX-License-Identifier: Apache-2.0

"""Which topology hints the endpoints of EndpointSlices should carry, so that kube-proxy does what topodns does."""
