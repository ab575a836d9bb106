"""Graphs of the user: readers of their file formats, one file each, and graphs that are generated from numbers."""
