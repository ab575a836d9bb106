"""Schedules of optical circuits inside one all-to-all: published schedulers, demands to compare them on."""
