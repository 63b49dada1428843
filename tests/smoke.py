"""`make smoke`: start `fluoroscope serve` on a free port, run clients/curl/smoke.sh against it.

    python -m tests.smoke [MODEL]

MODEL is what `fluoroscope serve --model` takes, the embedded demo by default. Exits with the
script's code, or 1 where the server does not get ready.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "clients" / "curl" / "smoke.sh"
READY_WITHIN = 180.0  # seconds, for a cold disk and a large model
# A proxy named in the environment has no business between two processes of one machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def main(model: str = "demo") -> int:
    """Serve, wait, check, stop; the exit code."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    command = Path(sys.executable).with_name("fluoroscope")
    server = subprocess.Popen(
        [command, "serve", "--model", model, "--host", "127.0.0.1", "--port", str(port)], cwd=ROOT
    )
    try:
        if reason := wait_until_ready(base, server):
            print(f"the server did not get ready: {reason}", file=sys.stderr)
            return 1
        return subprocess.run(["bash", SCRIPT, base], check=False).returncode
    finally:
        stop(server)


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(base: str, server: subprocess.Popen[bytes]) -> str | None:
    """None once /health/ready says so; else the reason why it never did."""
    reason = "it gave no answer"
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline:
        if server.poll() is not None:
            return f"it ended with code {server.returncode}"
        try:
            with _OPENER.open(f"{base}/health/ready", timeout=10):
                return None
        except urllib.error.HTTPError as refusal:
            with refusal:
                reason = str(json.load(refusal).get("detail", refusal))
        except OSError as error:
            reason = str(error)
        time.sleep(0.1)
    return f"after {READY_WITHIN:g} s: {reason}"


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and insist after ten seconds."""
    server.terminate()
    try:
        server.wait(timeout=10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
