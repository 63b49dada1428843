"""`make check`: are published vulnerabilities known of the packages that the server runs on?

    python -m tests.audit

pip-audit asks the package index about every pin of requirements.lock. A vulnerability is a failure.
Where the index cannot be asked, or knows none of the packages, that is said and is none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parent.parent / "requirements.lock"
WITHIN = 180.0  # seconds
NOT_ASKED = "NOTE: no vulnerability service could be asked, so nothing is known: "
# The libraries by which pip-audit asks, in the last line of its trace.
_UNREACHABLE = ("requests.exceptions.", "urllib3.exceptions.", "pip_audit._service.")


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--no-deps"]
    command += ["--disable-pip", "--progress-spinner", "off", "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, check=False)
    except subprocess.TimeoutExpired:
        print(f"{NOT_ASKED}no answer within {WITHIN:g} s")
        return 0
    passed, said = verdict(done.stdout, done.stderr)
    print(said)
    return 0 if passed else 1


def verdict(stdout: str, stderr: str) -> tuple[bool, str]:
    """Whether pip-audit's output is no reason to fail, and what to say of it."""
    try:
        packages = json.loads(stdout)["dependencies"]
    except (ValueError, KeyError):
        last = stderr.strip().rpartition("\n")[2]
        if last.startswith(_UNREACHABLE):
            return True, NOT_ASKED + last.partition(":")[0]
        return False, f"pip-audit failed: {stderr.strip()}"
    found = [
        f"{package['name']} {package['version']}: {fault['id']}, "
        f"fixed in {', '.join(fault['fix_versions']) or 'no version yet'}"
        for package in packages
        for fault in package.get("vulns", ())
    ]
    if found:
        return False, "\n".join(found)
    unknown = sum("skip_reason" in package for package in packages)
    if unknown == len(packages):
        return True, f"{NOT_ASKED}it knows none of the {unknown} packages"
    return True, f"no known vulnerability in {len(packages) - unknown} packages, {unknown} unknown"


if __name__ == "__main__":
    sys.exit(main())
