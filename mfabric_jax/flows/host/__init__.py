"""The engine for a CPU: compiled loops (numba, imported on first use) that update only what an event changes."""
