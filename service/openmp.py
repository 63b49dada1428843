"""What torch's threads do between two runs on a CPU: they sleep.

GNU OpenMP, which torch's wheels for Linux bring, lets a thread that has no work spin for 300,000
turns, some milliseconds, before it sleeps. Within a run that saves waking it for the next
operation, a few microseconds later; after the run it holds a core that writing and sending the
answer want. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import MutableMapping

# About 0.2 ms: longer than anything between two operations, shorter than what follows a run.
SPINS = {"GOMP_SPINCOUNT": "10000"}


def rest_between_runs(environment: MutableMapping[str, str]) -> None:
    """Said to the library by the environment that it finds when torch is first imported. Left as it
    is where an operator has said how threads wait."""
    if "OMP_WAIT_POLICY" not in environment:
        for name, value in SPINS.items():
            environment.setdefault(name, value)
