"""Helpers for all packages: arrays, files, compiled programs, optional dependencies. Nothing here knows fabrics."""
