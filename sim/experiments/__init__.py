"""The evaluations of the papers as commands: what to run, running it, and what to show."""
