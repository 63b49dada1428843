"""Generation: a text run once, then one token at a time, its inside open at every step.

Knows nothing of text, HTTP, or how the next token is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from model.cache import Cache
from model.capture import Capture
from model.checks import Checks
from model.edit import Edit
from model.gpt import GPT
from model.wiring import MODEL_WIRING, Wiring


@dataclass(frozen=True, eq=False)
class Advanced:
    """What one run of a generation gave.

    `logits` (V,) of the newest position, float32, on the host. `tensors` by capture name, on the
    run's device; `captures`, of the same names, say their axes, shapes and coordinates here. A
    capture that covers nothing of this step is in neither.
    """

    logits: Tensor
    tensors: dict[str, Tensor]
    captures: dict[str, Capture]
    checks: Checks


class Generation:
    """One text that grows. Captures and edits are resolved against the prompt."""

    def __init__(
        self,
        model: GPT,
        ids: Sequence[int],
        *,
        captures: Sequence[Capture] = (),
        edits: Sequence[Edit] = (),
        wiring: Wiring = MODEL_WIRING,
    ) -> None:
        self.ids = list(ids)
        self._model = model
        self._cache = Cache(model.config)

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    @property
    def room(self) -> int:
        """How many more tokens the context holds."""
        return self._model.config.n_ctx - len(self.ids)

    def prompt(self, stopped: Callable[[], bool] = lambda: False) -> Advanced:
        """The whole prompt, once."""
        raise NotImplementedError

    def advance(self, token_id: int, stopped: Callable[[], bool] = lambda: False) -> Advanced:
        """One token more."""
        raise NotImplementedError

    def fork(self) -> Generation:
        """Another generation that goes its own way from here."""
        raise NotImplementedError
