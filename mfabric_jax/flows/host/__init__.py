"""The engine for a CPU: compiled loops (numba) that touch only what an event changes. Arrays in, arrays out.

Imported when it is first used: nothing else needs numba.
"""
