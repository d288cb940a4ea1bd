"""The command line: finds a command, runs it, and says how it ended."""
