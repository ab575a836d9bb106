"""Read, write and replay graphs of tasks, export an iteration as one, and run several jobs on one network."""
