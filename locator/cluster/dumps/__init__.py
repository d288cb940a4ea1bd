"""Reading dumps, apart from following them: a process is started for each reading, which should not load trio first."""
