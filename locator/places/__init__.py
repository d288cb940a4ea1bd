"""Which object holds an address, and where that is."""
