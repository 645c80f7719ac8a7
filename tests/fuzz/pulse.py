"""`python -m tests.fuzz.pulse URL SECONDS`: asks for the gateway's health until its input ends, then says how long it took at most.

A process of its own: one that makes up cases and checks answers has no time to measure others'.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import httpx

EVERY = 0.1


class Pulse:
    """What that process says."""

    def __init__(self, url: str, patience: float) -> None:
        words = [sys.executable, "-m", "tests.fuzz.pulse", url, str(patience)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.wrong: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            for line in said:
                self.wrong.append(line.strip())

    def stop(self) -> float:
        """Seconds that it took at most."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        return float(json.loads(self.wrong.pop())) if self.wrong else 0.0


def main(url: str, patience: float) -> None:
    over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    slowest = 0.0
    with httpx.Client(base_url=url, timeout=patience, trust_env=False) as http:
        while not over.wait(EVERY):
            started = time.monotonic()
            try:
                if http.get("/healthz").status_code != 200:
                    print("/healthz is not 200", flush=True)
            except httpx.HTTPError as error:
                print(f"/healthz did not answer in {patience} s: {error!r}", flush=True)
            slowest = max(slowest, time.monotonic() - started)
    print(json.dumps(slowest), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
