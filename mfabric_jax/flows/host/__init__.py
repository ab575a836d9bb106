"""The engine for a CPU: compiled loops (numba, imported on first use) that update only what an event changes."""

AT_ONE_TIME = 2e-15  # relative difference below which ends of flows are equal
NEAR = 1e-12  # the same for levels of filling, and for the room on links
