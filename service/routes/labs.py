"""The labs: small exact experiments. Each answers to `{}` with the course's own example."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import APIRouter, Body, FastAPI, Request
from starlette.responses import Response

from service import labs, labs_on_layers, labs_on_model
from service.inspector import inspector_of
from service.labs_on_layers import Diagnoses
from service.routes.lab_response import lab_response
from service.routes.responses import PROBLEMS_OF_A_POST, PROBLEMS_OF_A_RUN
from service.schemas.labs import (
    AttentionLabAnswer,
    AttentionLabRequest,
    HeadsLabAnswer,
    HeadsLabRequest,
    ScalingLabAnswer,
    ScalingLabRequest,
)
from service.schemas.model_labs import (
    BlockLabAnswer,
    BlockLabRequest,
    DiagnosticsAnswer,
    DiagnosticsRequest,
    OrderLabAnswer,
    OrderLabRequest,
)


@asynccontextmanager
async def remember(app: FastAPI) -> AsyncIterator[None]:
    """Diagnoses take seconds and never change: they are kept as long as the server runs."""
    app.state.diagnoses = Diagnoses()
    yield


router = APIRouter(tags=["labs"], lifespan=remember)


@router.post(
    "/v1/labs/attention",
    operation_id="attention_lab",
    summary="Attention by hand: every number from q, k, v to the output",
    response_model=AttentionLabAnswer,
    responses=PROBLEMS_OF_A_RUN,
)
async def attention(
    http: Request,
    asked: Annotated[
        AttentionLabRequest,
        Body(
            openapi_examples={
                "the course's six words": {"value": {}},
                "without the scale": {"value": {"scaled": False, "query": 4}},
                "your own vectors": {
                    "value": {
                        "source": {
                            "kind": "vectors",
                            "q": [[1, 0], [0, 1]],
                            "k": [[1, 1], [0, 2]],
                            "v": [[1, 0], [0, 1]],
                        },
                        "causal": True,
                    }
                },
                "a head of the model": {
                    "value": {"source": {"kind": "model", "layer": 0, "head": 0}, "query": -1}
                },
            }
        ),
    ],
) -> Response:
    """Float64 throughout. One query's numbers are those of its row in the matrix."""
    if asked.source.kind == "model":
        fields = await labs_on_model.attention_on_model(http, asked, asked.source)
    else:
        inspector = inspector_of(http)
        fields = await inspector.off_loop(
            labs.attention_lab, asked, asked.source, labs.limits_of(inspector.settings)
        )
    return await lab_response(http, fields)


@router.post(
    "/v1/labs/heads",
    operation_id="heads_lab",
    summary="Several heads on the same tokens, and how W_O mixes them",
    response_model=HeadsLabAnswer,
    responses=PROBLEMS_OF_A_RUN,
)
async def heads(
    http: Request,
    asked: Annotated[
        HeadsLabRequest,
        Body(
            openapi_examples={
                "the course's three heads": {"value": {}},
                "under the mask": {"value": {"causal": True}},
                "a layer of the model": {"value": {"source": {"kind": "model", "layer": 0}}},
            }
        ),
    ],
) -> Response:
    """Each head's sentence, in Chinese and English, says only what its numbers bear."""
    if asked.source.kind == "model":
        fields = await labs_on_model.heads_on_model(http, asked, asked.source)
    else:
        inspector = inspector_of(http)
        fields = await inspector.off_loop(
            labs.heads_lab, asked, asked.source, labs.limits_of(inspector.settings)
        )
    return await lab_response(http, fields)


@router.post(
    "/v1/labs/scaling",
    operation_id="scaling_lab",
    summary="Why ÷√d: dots of random vectors at growing head sizes",
    response_model=ScalingLabAnswer,
    responses=PROBLEMS_OF_A_POST,
)
async def scaling(
    http: Request,
    asked: Annotated[
        ScalingLabRequest,
        Body(
            openapi_examples={
                "2 to 1024": {"value": {}},
                "two sizes": {"value": {"head_sizes": [16, 256], "seed": 7}},
            }
        ),
    ],
) -> Response:
    """The same seed gives the same numbers; each head size has its own stream of them."""
    inspector = inspector_of(http)
    return await lab_response(
        http, await inspector.off_loop(labs.scaling_lab, asked, labs.limits_of(inspector.settings))
    )


@router.post(
    "/v1/labs/block",
    operation_id="block_lab",
    summary="One block at one position: norms, writes, sums, the strongest neurons",
    response_model=BlockLabAnswer,
    responses=PROBLEMS_OF_A_RUN,
)
async def block(
    http: Request,
    asked: Annotated[
        BlockLabRequest,
        Body(
            openapi_examples={
                "the last token": {"value": {}},
                "another": {"value": {"text": "The cat sat.", "layer": -1, "position": 1}},
            }
        ),
    ],
) -> Response:
    """Every vector comes with its mean, variance and length, before the norm and after."""
    return await lab_response(http, await labs_on_layers.block_lab(http, asked))


@router.post(
    "/v1/labs/order",
    operation_id="order_lab",
    summary="The same tokens in another order, with and without positions",
    response_model=OrderLabAnswer,
    responses=PROBLEMS_OF_A_RUN,
)
async def order(
    http: Request,
    asked: Annotated[
        OrderLabRequest,
        Body(
            openapi_examples={
                "who chases whom": {"value": {}},
                "in English": {"value": {"texts": [" cat chases dog", " dog chases cat"]}},
            }
        ),
    ],
) -> Response:
    """Without positions and mask both inputs give the same set of outputs."""
    return await lab_response(http, await labs_on_layers.order_lab(http, asked))


@router.post(
    "/v1/labs/diagnostics",
    operation_id="diagnostics_lab",
    summary="The five classic mistakes, each made on purpose and measured",
    response_model=DiagnosticsAnswer,
    responses=PROBLEMS_OF_A_RUN,
)
async def diagnostics(
    http: Request,
    asked: Annotated[
        DiagnosticsRequest,
        Body(
            openapi_examples={
                "the course's sentence": {"value": {}},
                "your own": {"value": {"text": "The cat chased the mouse."}},
            }
        ),
    ],
) -> Response:
    """Takes seconds the first time: freshly drawn weights learn the text with the residual and
    without. A symptom that was not measured says so."""
    return await lab_response(http, await labs_on_layers.diagnostics_lab(http, asked))
