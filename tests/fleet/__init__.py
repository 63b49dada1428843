"""Tests on a real local Ray, which listens on loopback alone where it is told this on import."""

import os

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # its name for "one machine only"
