"""Gets what the tests need from registries, before them: they may not reach beyond loopback themselves.

python -m tests.support.fetch     says in a line what cannot be had; that is a failure only where CI=true
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.support.aimock import FOLDER, PROGRAM, VERSION


def fetch_aimock() -> str | None:
    """Why it cannot be had, or None."""
    if PROGRAM.exists():
        return None
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        return "it needs node and npm, which are not here"
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(FOLDER)]
    done = subprocess.run([*command, f"@copilotkit/aimock@{VERSION}"], capture_output=True, text=True)
    return " ".join((done.stderr or done.stdout).split())[-300:] if done.returncode else None


def main() -> int:
    problem = fetch_aimock()
    if problem is None:
        return 0
    must = os.environ.get("CI") == "true"
    what = "the tests need it" if must else "the tests that use it will be skipped"
    print(f"aimock {VERSION} could not be fetched: {problem}; {what}", file=sys.stderr)
    return 1 if must else 0


if __name__ == "__main__":
    sys.exit(main())
