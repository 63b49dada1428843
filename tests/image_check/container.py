"""One command in an image's root, shut in as an engine would. Knows nothing of how it was built.

Own mounts, processes, network and host name; a root that cannot be written to, with tmpfs on /tmp;
the image's user, without the means to become another; only the image's environment and what is
given. The network is a loopback of its own, so that a server that listens everywhere is reached by
nobody but the check.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMESPACES = ("--mount", "--pid", "--net", "--uts", "--ipc")
# $1 the root, $2 the user, $3 a folder to mount at $4, then the command.
ENTER = """
set -eu
root=$1 user=$2 folder=$3 place=$4
shift 4
ip link set lo up
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/tmp"
mount -t tmpfs -o mode=755,nosuid tmpfs "$root/dev"
for device in null zero full random urandom; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
if [ -n "$folder" ]; then
  mount --bind "$folder" "$root$place"
  mount -o remount,bind,ro "$root$place"
fi
mount -o remount,bind,ro "$root"
exec setpriv --no-new-privs chroot --userspec="$user" --groups= "$root" "$@"
"""


class Container:
    """A running command; `with` ends it."""

    def __init__(
        self,
        root: Path,
        config: Mapping[str, Any],
        *,
        environment: Mapping[str, str],
        models: Path | None = None,
    ) -> None:
        self._user = str(config["User"])
        given = [f"{name}={value}" for name, value in environment.items()]
        self._start = ["/usr/bin/env", "-i", "-C", config["WorkingDir"], *config["Env"], *given]
        where = [str(root), self._user, str(models or ""), "/models"]
        shut_in = [
            "unshare",
            *NAMESPACES,
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            ENTER,
            "sh",
            *where,
        ]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by __exit__)
        self._outside = subprocess.Popen(
            [*shut_in, *self._start, *config["Cmd"]],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        # --kill-child does not outlive the change of user: the one inside is ended itself.
        with suppress(LookupError, ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._outside.wait()
        self._log.close()

    @property
    def pid(self) -> int:
        """Of the command, as this machine counts; 1 for itself. LookupError where it has ended."""
        outside = self._outside.pid
        while self._outside.poll() is None:
            children = Path(f"/proc/{outside}/task/{outside}/children").read_text().split()
            if children:
                return int(children[0])
        raise LookupError(f"it ended with code {self.code()}: {self.said()}")

    def execute(self, *command: str) -> subprocess.CompletedProcess[bytes]:
        """Another command inside, as the same user, like `docker exec`."""
        user, group = self._user.split(":")
        into = ["nsenter", "--target", str(self.pid), *NAMESPACES, "--root"]
        into += ["--setuid", user, "--setgid", group, *self._start]
        return subprocess.run([*into, *command], check=False, capture_output=True, timeout=60)

    def from_its_network(self, *command: str, **environment: str) -> bytes:
        """A command of this machine, which reaches the server's loopback; what it printed.

        Raises CalledProcessError with what it said.
        """
        into = ["nsenter", "--target", str(self.pid), "--net"]
        done = subprocess.run(
            [*into, *command], check=True, capture_output=True, env=os.environ | environment
        )
        return done.stdout

    def terminate(self) -> None:
        """What `docker stop` sends."""
        os.kill(self.pid, signal.SIGTERM)

    def code(self, within: float | None = None) -> int:
        """The exit code as an engine says it, 128 + n for signal n."""
        code = self._outside.wait(timeout=within)
        return code if code >= 0 else 128 - code

    def said(self) -> str:
        """Its log until now."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace").strip()
