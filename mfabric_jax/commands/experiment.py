"""Run one experiment in its own process: `python -m mfabric_jax.commands.experiment MODULE [options]`."""

import sys

from mfabric_jax.support.interrupts import whole_process


def main(words: list[str]) -> int:
    """Return the exit status."""
    from mfabric_jax.commands.reproduction import load
    from mfabric_jax.commands.shared import start_jax

    start_jax("float32", None)
    return load(words[0]).main(words[1:])


if __name__ == "__main__":
    whole_process(lambda: main(sys.argv[1:]))
