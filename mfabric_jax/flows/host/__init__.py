"""The engine for a CPU: compiled loops (numba, imported on first use) that touch only what an event changes."""
