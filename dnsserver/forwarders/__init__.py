"""Forwarders in front of topodns: prints their stub blocks and checks their Corefiles."""
