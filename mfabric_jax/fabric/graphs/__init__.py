"""Graphs of a user's own: readers of the formats in which they exist, one file each, and kinds that are made here."""
