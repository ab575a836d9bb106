"""Which code this is, and on what it runs."""

import functools
import pathlib
import platform
import subprocess
import sys

import mfabric_jax

SHORT = 12  # digits of a commit


def version_line() -> str:
    """Version, commit, Python, JAX and device in one line; a part that cannot be had is named as such."""
    parts = [
        f"commit {made[:12]}{'+changes' if made.endswith('+changes') else ''}" if (made := commit()) else "installed"
    ]
    parts += [f"Python {platform.python_version()}", *_of_jax()]
    return f"mfabric {mfabric_jax.__version__} ({', '.join(parts)})"


def python(code: str, *words: str) -> list[str]:
    """The command that runs code in another process, which imports from where this one does as well: Python alone would
    begin with the working folder, whose files may be of others."""
    return [sys.executable, "-P", "-c", f"import sys; sys.path += {sys.path!r}; {code}", *words]


def _of_jax() -> list[str]:
    try:
        import jax
    except ImportError as error:
        return [f"no JAX: {error}"]
    try:
        device = jax.devices()[0]
    except RuntimeError as error:  # a platform that JAX_PLATFORMS asks for, and that is not here
        return [f"JAX {jax.__version__}", f"no device: {str(error).splitlines()[0]}"]
    return [f"JAX {jax.__version__}", f"device {device.platform}: {device.device_kind}"]


@functools.cache
def commit() -> str | None:
    """The commit of a source checkout, with "+changes" if files differ; None for an installed package."""
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
