"""The course as data: a learner's index, a front-end's menu."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import APIRouter, Request

from model.labs.examples import ORDER_TEXTS
from model.labs.fresh import MOST_WEIGHTS, block_weights
from service.course import COURSE, Item, Need
from service.inspector import Inspector, inspector_of
from service.routes.responses import PROBLEMS_OF_A_GET
from service.schemas.course import CourseAnswer, CourseItem, Observation
from service.schemas.labs import SentenceWire

router = APIRouter(tags=["labs"], responses=PROBLEMS_OF_A_GET)


@router.get(
    "/v1/course",
    operation_id="course",
    summary="Every experiment, pitfall and step as a request, with what to observe",
)
async def course(http: Request) -> CourseAnswer:
    """`observe` names numbers of the answer by pointer and says, in Chinese and English, what they
    show. An item that the loaded model cannot show is listed as not available, with the reason."""
    inspector = inspector_of(http)
    return await inspector.off_loop(
        lambda: CourseAnswer(items=[_item(item, inspector) for item in COURSE])
    )


def _item(item: Item, inspector: Inspector) -> CourseItem:
    missing = _lacks(inspector, item.needs)
    return CourseItem(
        id=item.id,
        kind=item.kind,
        title=SentenceWire(**vars(item.title)),
        method="GET" if item.body is None else "POST",
        path=item.path,
        body=item.body,
        observe=[
            Observation(
                pointer=see.pointer,
                op=see.op,
                value=see.value,
                says=SentenceWire(zh=see.zh, en=see.en),
            )
            for see in item.observe
        ],
        available=missing is None,
        missing=missing,
    )


def _lacks(inspector: Inspector, needs: Sequence[Need]) -> str | None:
    """What the loaded model has not got of what an item of the course needs; None if all."""
    config = inspector.opened.model.config
    has: dict[Need, tuple[Callable[[], bool], str]] = {
        "tokenizer": (
            lambda: inspector.opened.tokenizer is not None,
            "this model has no tokenizer",
        ),
        "same_tokens": (
            lambda: _same_tokens(inspector),
            "its tokenizer does not give the two texts the same tokens",
        ),
        "rope": (
            lambda: config.positions == "rope",
            f"this model's positions are {config.positions}, not rotary",
        ),
        "positions": (lambda: config.positions != "none", "this model has no positions"),
        "layernorm": (lambda: config.norm == "layernorm", f"this model's norm is {config.norm}"),
        "few_weights": (
            lambda: block_weights(config) <= MOST_WEIGHTS,
            f"its blocks have more than {MOST_WEIGHTS} weights to draw anew",
        ),
    }
    return next((why for there, why in (has[need] for need in needs) if not there()), None)


def _same_tokens(inspector: Inspector) -> bool:
    """Whether the course's two sentences are the same tokens: SentencePiece marks the word that
    begins a text, which may then be another token."""
    tokenizer = inspector.opened.tokenizer
    assert tokenizer is not None  # whoever needs the same tokens needs a tokenizer first
    first, second = (sorted(tokenizer.read(text).ids) for text in ORDER_TEXTS)
    return first == second
