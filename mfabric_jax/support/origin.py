"""The version of this code, and the platform that it runs on."""

import functools
import pathlib
import platform
import subprocess
import sys

import mfabric_jax

SHORT = 12  # digits of a short commit


def version_line() -> str:
    """Return version, commit, Python, JAX and device in one line, which also names what is missing."""
    parts = [
        f"commit {made[:12]}{'+changes' if made.endswith('+changes') else ''}" if (made := commit()) else "installed"
    ]
    parts += [f"Python {platform.python_version()}", *_of_jax()]
    return f"mfabric {mfabric_jax.__version__} ({', '.join(parts)})"


def python(code: str, *words: str) -> list[str]:
    """Return the command that runs code in another process with this process's import path.

    By default Python would import from the working folder first, whose files may belong to others.
    """
    return [sys.executable, "-P", "-c", f"import sys; sys.path += {sys.path!r}; {code}", *words]


def _of_jax() -> list[str]:
    try:
        import jax
    except ImportError as error:
        return [f"no JAX: {error}"]
    try:
        device = jax.devices()[0]
    except RuntimeError as error:  # JAX_PLATFORMS names a platform that is missing
        return [f"JAX {jax.__version__}", f"no device: {str(error).splitlines()[0]}"]
    return [f"JAX {jax.__version__}", f"device {device.platform}: {device.device_kind}"]


@functools.cache
def commit() -> str | None:
    """Return the commit of a source checkout, with "+changes" if files differ; None for an installed package."""
    root = pathlib.Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
