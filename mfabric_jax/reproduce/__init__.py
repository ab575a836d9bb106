"""`mfabric reproduce`: the figures of the paper, each drawn by an experiment in a process of its own.

A process has its own precision and memory, and takes no other with it when it fails. What is done is kept: rows and
picture of the same configuration and code are not computed again.
"""
