"""Read, write and replay task graphs, export an iteration as a task graph, and run several jobs on one network."""
