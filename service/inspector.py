"""The inspector: the one owner of the running model. A plan in, a Reading of it out.

All tensor work happens on its one inference thread, tokenizing and encoding on codec threads; the
event loop never computes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from threading import Event, Thread, current_thread
from typing import Any, TypeVar

import torch
from fastapi import Request
from torch import Tensor

from model.capture import Capture
from model.checkpoints.open import OpenedModel
from model.checks import Checks
from model.comparison import Comparison, compare_logits
from model.edit import Edit
from model.reading import RunCancelled, read
from model.sites import SITES
from service.admission import Admission
from service.errors import Problem
from service.faults import as_out_of_memory, is_fatal
from service.plan import ALL_LOGITS, Patch, Plan
from service.settings import Settings
from service.wire.tensors import NamedTensor, NotFiniteError

T = TypeVar("T")
Stopped = Callable[[], bool]
Finish = Callable[[Plan, Mapping[str, Tensor], Stopped], dict[str, Any]]
Observe = Callable[[str, float], None]  # a stage's name and the seconds that it took
PROBE_AFTER = 5.0  # seconds of idleness after which readiness tries a token
PROBE_SECONDS = 1.5  # that this token may take, so that readiness answers within 2


@dataclass(frozen=True)
class Inspected:
    """What one plan gave, on the host: tensors to send, and everything said beside them."""

    tensors: list[NamedTensor]
    checks: Checks
    finite: bool
    edits: list[Edit]
    comparison: Comparison | None
    extra: dict[str, Any]


@dataclass
class Timing:
    """Milliseconds."""

    queue: float = 0.0
    forward: float = 0.0


class Inspector:
    """Runs plans one at a time, in the order in which they were admitted."""

    @classmethod
    async def open(
        cls,
        open_with: Callable[[Settings], OpenedModel],
        settings: Settings,
        observe: Observe = lambda stage, seconds: None,
    ) -> Inspector:
        """With the model opened on the inference thread as well: OpenMP keeps a team of threads for
        each thread that computes, and two teams on the same cores slow every run by a third."""
        device = ThreadPoolExecutor(1, "inference")
        try:
            opened = await asyncio.get_running_loop().run_in_executor(device, open_with, settings)
        except BaseException:
            device.shutdown(wait=False)
            raise
        return cls(opened, settings, observe, device)

    def __init__(
        self,
        opened: OpenedModel,
        settings: Settings,
        observe: Observe = lambda stage, seconds: None,
        device: ThreadPoolExecutor | None = None,
    ) -> None:
        self.opened = opened
        self.settings = settings
        self.observe = observe
        self.admission = Admission(settings)
        self._thread: Thread | None = None
        self._device = device or ThreadPoolExecutor(1, "inference")
        self._codec = ThreadPoolExecutor(2, "codec")
        self._running_since: float | None = None
        self._last_forward = float("-inf")
        self._probe_took = 0.0
        self._broken: str | None = None
        self._fatal: str | None = None

    @property
    def fatal(self) -> str | None:
        """Why no run can succeed any more in this process; None as long as one may."""
        if self._thread is not None and not self._thread.is_alive():
            return "the inference thread is dead"
        return self._fatal

    @property
    def busy(self) -> bool:
        """Whether the inference thread is inside a run, wanted or abandoned."""
        return self._running_since is not None

    async def off_loop(self, work: Callable[..., T], *arguments: Any) -> T:
        """Work without the model and without torch's threads, on a codec thread: tokenizing,
        encoding, a lab's numpy. See `open` for what torch would start there."""
        return await asyncio.get_running_loop().run_in_executor(
            self._codec, copy_context().run, work, *arguments
        )

    async def stage(
        self, name: str, timing: dict[str, float], work: Callable[..., T], *arguments: Any
    ) -> T:
        """The same, its milliseconds noted in timing and told to the metrics."""
        start = time.perf_counter()
        result = await self.off_loop(work, *arguments)
        timing[name] = (time.perf_counter() - start) * 1e3
        self.observe(name, timing[name] / 1e3)
        return result

    async def inspect(self, plan: Plan, finish: Finish | None) -> tuple[Inspected, Timing]:
        """Run the plan once admitted. `finish` makes a route's own keys from the captures, on the
        inference thread. Cancelling the caller ends the run at the next block."""
        return await self.on_device(lambda stopped: self._inspect(plan, finish, stopped))

    async def on_device(
        self, work: Callable[[Callable[[], bool]], T], *, step: bool = False
    ) -> tuple[T, Timing]:
        """Admit, then do tensor work on the inference thread; `work` is given a stop question.

        The slot is kept until the thread is done with it, also where nobody waits any more. A
        `step` of a generation that was admitted is never refused.
        """
        timing = Timing()
        timing.queue = await self.admission.acquire(step=step)
        self.observe("queue", timing.queue / 1e3)
        stop = Event()
        future = asyncio.get_running_loop().run_in_executor(
            self._device, copy_context().run, self._timed, work, stop.is_set, timing
        )
        future.add_done_callback(self._done)
        try:
            async with asyncio.timeout(self.settings.run_seconds):
                return await asyncio.shield(future), timing
        except TimeoutError:
            limit = self.settings.run_seconds
            raise Problem(
                "deadline-passed", f"the run took over {limit:g} s and was ended", limit=limit
            ) from None
        finally:
            stop.set()

    def _done(self, future: asyncio.Future[Any]) -> None:
        self.admission.release()
        if not future.cancelled():
            future.exception()  # seen, so that an abandoned run does not complain at exit

    def _timed(
        self,
        work: Callable[[Callable[[], bool]], T],
        stopped: Callable[[], bool],
        timing: Timing,
    ) -> T:
        self._thread = current_thread()
        start = self._running_since = time.monotonic()
        try:
            with torch.inference_mode():
                result = work(stopped)
            self._broken = None
            return result
        except (ValueError, Problem, RunCancelled):
            raise
        except BaseException as error:
            if (problem := as_out_of_memory(error)) is not None:
                raise problem from None
            self._broken = f"the last run failed with {type(error).__name__}"
            if is_fatal(error):
                self._fatal = self._broken
            if isinstance(error, Exception):
                raise
            raise RuntimeError(self._broken) from error  # the event loop is not to end by it
        finally:
            self._running_since = None
            self._last_forward = time.monotonic()
            timing.forward = (self._last_forward - start) * 1e3
            self.observe("forward", timing.forward / 1e3)

    def _inspect(self, plan: Plan, finish: Finish | None, stopped: Callable[[], bool]) -> Inspected:
        model = self.opened.model
        edits = self.edits_of(plan, stopped)
        reading = read(
            model,
            plan.ids,
            plan.captures,
            edits=edits,
            wiring=plan.wiring,
            full_checks=plan.request.checks_level == "full",
            stopped=stopped,
        )
        comparison = None
        if plan.request.compare:
            everything = Capture.resolve(SITES["logits"], {}, model.config, len(plan.ids))
            plain = read(model, plan.ids, [everything], stopped=stopped)
            before, after = plain.tensors["logits"], reading.tensors[ALL_LOGITS]
            for logits in (before, after):
                require_probabilities(logits)
            comparison = compare_logits(before, after, stopped=stopped)
        extra = finish(plan, reading.tensors, stopped) if finish is not None else {}
        tensors = named_tensors(plan.shown, reading.tensors, plan.dtype)
        finite = all_finite(tensors, reading.checks)
        return Inspected(tensors, reading.checks, finite, edits, comparison, extra)

    def edits_of(self, plan: Plan, stopped: Callable[[], bool]) -> list[Edit]:
        """The plan's edits, a patch with the values of its source, which is run for it."""
        return [self._with_values(item, stopped) for item in plan.edits]

    def _with_values(self, item: Edit | Patch, stopped: Callable[[], bool]) -> Edit:
        if isinstance(item, Edit):
            return item
        source = read(self.opened.model, item.ids, [item.capture], stopped=stopped)
        return replace(item.edit, value=source.tensors[item.capture.name])

    async def why_not_ready(self) -> str | None:
        """None where the last forward progressed within its deadline; busy is ready.

        Only an idle model is tried, with one token, and only after a while of idleness.
        """
        if self.fatal is not None:
            return self.fatal
        since = self._running_since
        if since is not None:
            if self._broken is not None:
                return self._broken  # until a run gets through
            over = time.monotonic() - since - self.settings.run_seconds
            return f"a run is {over:.0f} s over its deadline" if over > 0 else None
        if self._broken is None and time.monotonic() - self._last_forward < PROBE_AFTER:
            return None
        begun = Event()

        def probe(stopped: Stopped) -> None:
            begun.set()
            self._probe()

        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self.on_device(probe)
        except TimeoutError:
            if self.busy and not begun.is_set():
                return self._broken  # a request came first
            if 2 * self._probe_took > PROBE_SECONDS:
                return None  # a slow model at its usual pace; `run_seconds` is its deadline
            self._broken = f"a run of one token gave no answer within {PROBE_SECONDS:g} s"
            return self._broken
        except Exception:
            return self._broken or "a run of one token failed"
        return None

    def _probe(self) -> None:
        model = self.opened.model
        start = time.monotonic()
        model(torch.zeros(1, 1, dtype=torch.long, device=model.embed.weight.device))
        self._probe_took = time.monotonic() - start

    def close(self) -> None:
        self._device.shutdown(wait=False, cancel_futures=True)
        self._codec.shutdown(wait=False, cancel_futures=True)


def inspector_of(http: Request) -> Inspector:
    """The app's inspector. Raises a 503 while the model loads."""
    inspector: Inspector | None = http.app.state.inspector
    if inspector is None:
        raise Problem("not-ready", "the model is loading", headers={"retry-after": "1"})
    return inspector


def named_tensors(
    captures: Sequence[Capture], tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> list[NamedTensor]:
    """What was captured, on the host, ready to be written."""
    arrays = to_host([tensors[capture.name].to(dtype) for capture in captures])
    return [
        NamedTensor(c.name, c.site.name, c.axes, c.coords, array)
        for c, array in zip(captures, arrays, strict=True)
    ]


def to_host(tensors: list[Tensor]) -> list[Any]:
    """As numpy arrays: on the CPU the very memory; from a GPU pinned copies, then one wait."""
    if not any(tensor.is_cuda for tensor in tensors):
        return [tensor.cpu().numpy() for tensor in tensors]
    copies = [
        torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
            tensor, non_blocking=True
        )
        for tensor in tensors
    ]
    torch.cuda.synchronize()
    return [copy.numpy() for copy in copies]


def require_finite(logits: Tensor) -> None:
    """Raises NotFiniteError for a NaN or +∞ among them: no probability comes of such a row."""
    if not bool(logits.amax() < float("inf")):  # NaN compares false
        raise NotFiniteError(
            "the logits hold NaN or +∞, of which no probability comes; /v1/inspect shows them as "
            "base64 or safetensors"
        )


def require_probabilities(logits: Tensor) -> None:
    """Raises NotFiniteError for rows (…, V) that are no distribution: NaN, +∞, or −∞ alone."""
    require_finite(logits)
    if not bool(logits.amax(-1).amin() > -float("inf")):
        raise NotFiniteError(
            "every logit of a position is −∞, of which no probability comes; /v1/inspect shows them"
        )


def all_finite(tensors: Sequence[NamedTensor], checks: Checks) -> bool:
    """No NaN and no ∞ anywhere, but for −∞ in masked scores."""
    return all(_finite(tensor) for tensor in tensors) and checks.finite


def _finite(tensor: NamedTensor) -> bool:
    low, high = tensor.extremes  # NaN compares false
    return high < float("inf") and (low > float("-inf") or tensor.site == "attn.masked_scores")
