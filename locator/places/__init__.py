"""Who has which address, and where that is."""
