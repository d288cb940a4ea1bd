"""Every setting: one frozen record, read once from flags, environment and file."""
