"""The course as data: a learner's index, a front-end's menu."""

from __future__ import annotations

from fastapi import APIRouter, Request

from service.course import COURSE, Item
from service.inspector import Inspector, inspector_of
from service.labs_on_model import lacks
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
    missing = lacks(inspector, item.needs)
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
