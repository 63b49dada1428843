"""A lab's work on the inference thread, admitted and done; of the running model, its text read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from fastapi import Request

from model.gpt import GPT
from model.labs.examples import TEXT
from model.tokenizer import Token
from service.input import encode_input, require_runnable
from service.inspection import identity
from service.inspector import Timing, inspector_of
from service.labs import Fields, refusals
from service.schemas.labs import LabText
from service.wire.leaving import until_gone

T = TypeVar("T")
Stopped = Callable[[], bool]


@dataclass(frozen=True)
class LabInput:
    """Token ids, and how each token is shown."""

    ids: list[int]
    tokens: list[str]


async def read_input(http: Request, asked: LabText) -> LabInput:
    """The text or the ids of a lab's request; the course's sentence where there is neither."""
    text = TEXT if asked.text is None and asked.token_ids is None else asked.text
    return await read_one(http, text, asked.token_ids, asked.add_bos)


async def read_one(
    http: Request, text: str | None, ids: Sequence[int] | None, add_bos: bool | None = None
) -> LabInput:
    inspector = inspector_of(http)
    opened, settings = inspector.opened, inspector.settings

    def read() -> LabInput:
        inspector.admission.require_room()
        encoded = encode_input(opened, settings, text=text, token_ids=ids, add_bos=add_bos)
        require_runnable(encoded, opened, settings)
        if opened.tokenizer is None:
            return LabInput(encoded.ids, [str(token) for token in encoded.ids])
        return LabInput(encoded.ids, _names(opened.tokenizer.tokens(encoded)))

    return await inspector.off_loop(read)


def _names(tokens: Sequence[Token]) -> list[str]:
    """What each token shows; the parts of a split character are counted: 老, 老(2)."""
    names: list[str] = []
    split, part = "", 1
    for token in tokens:
        part = part + 1 if token.continuation else 1
        rest = f"{split}({part})" if token.continuation else ""
        names.append(rest + token.display or token.raw)
        if token.display:
            split, part = token.display[-1], 1
    return names


async def admitted(
    http: Request, work: Callable[[Stopped], T], *, under: str = ""
) -> tuple[T, Timing]:
    """Do the work on the inference thread once admitted: where a lab needs the model, and where it
    computes with torch on whatever it was given, which no codec thread may do (`Inspector.open`).

    A lab's own errors become problems that point below `under`.
    """
    inspector = inspector_of(http)
    with refusals(under):
        return cast(tuple[T, Timing], await until_gone(http.receive, inspector.on_device(work)))


async def on_model(
    http: Request, given: LabInput, work: Callable[[GPT, Stopped], T], *, under: str = ""
) -> tuple[T, Fields]:
    """The same with the model: the work's result, and whose numbers these are."""
    inspector = inspector_of(http)
    model = inspector.opened.model
    found, timing = await admitted(http, lambda stopped: work(model, stopped), under=under)
    milliseconds = {"queue": timing.queue, "forward": timing.forward}
    return found, {
        "model": identity(inspector),
        "token_ids": given.ids,
        "timing_ms": {name: round(value, 3) for name, value in milliseconds.items()},
    }
