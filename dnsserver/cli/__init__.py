"""The command line: commands, flags, messages and exit statuses."""
