"""What the server says about itself: the loaded model and the vocabulary of sites."""

from __future__ import annotations

import dataclasses

from fastapi import APIRouter, Request

from model.sites import SITES
from service.input import token_limit
from service.inspection import identity
from service.inspector import inspector_of
from service.routes.responses import PROBLEMS_OF_A_GET
from service.schemas.model import ModelAnswer, SiteReport, SitesAnswer, TokenizerReport
from service.wire.negotiation import EVENTS, OFFERED

router = APIRouter(tags=["model"], responses=PROBLEMS_OF_A_GET)


@router.get("/v1/model", operation_id="model", summary="The loaded model and this server's limits")
async def model(http: Request) -> ModelAnswer:
    """Config, tokenizer, provenance; the head map says which key/value head a query head reads."""
    inspector = inspector_of(http)
    opened, settings = inspector.opened, inspector.settings
    config = opened.model.config
    tokenizer = opened.tokenizer
    return ModelAnswer(
        **identity(inspector),
        source=opened.source,
        format=opened.format,
        notes=list(opened.notes),
        config=config.to_dict(),
        parameters=sum(weight.numel() for weight in opened.model.parameters()),
        kv_head_of_head=config.kv_head_of,
        tokenizer=None
        if tokenizer is None
        else TokenizerReport(**dataclasses.asdict(tokenizer.describe())),
        limits={
            "body_bytes": settings.max_body_bytes,
            "body_seconds": settings.body_seconds,
            "text_bytes": settings.max_text_bytes,
            "tokens": token_limit(config, settings),
            "answer_bytes": settings.max_answer_bytes,
            "in_flight_bytes": settings.max_in_flight_bytes,
            "lab_dimensions": settings.lab_dimensions,
            "lab_tokens": settings.lab_tokens,
            "waiting": settings.waiting,
            "wait_seconds": settings.wait_seconds,
            "run_seconds": settings.run_seconds,
            "new_tokens": settings.max_new_tokens,
            "new_tokens_default": min(settings.new_tokens, settings.max_new_tokens),
            "generations": settings.generations,
        },
        formats=list(OFFERED),
        stream_formats=[EVENTS],
    )


@router.get("/v1/sites", operation_id="sites", summary="Every value that can be read or edited")
async def sites(http: Request) -> SitesAnswer:
    """In the order in which a run meets them."""
    config = inspector_of(http).opened.model.config
    return SitesAnswer(
        sites=[
            SiteReport(
                site=site.name,
                axes=list(site.axes),
                shape=site.symbolic_shape,
                layered=site.layered,
                present=site.present(config),
                editable=True,
                aliases=[site.alias] if site.alias else [],
                meaning=site.meaning,
            )
            for site in SITES.values()
        ]
    )
