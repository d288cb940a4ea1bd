"""The edge that people type at: commands, exit codes, messages, logging."""
