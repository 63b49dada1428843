"""Text and token ids, both ways. No run of the model."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Request
from starlette.responses import Response

from model.tokenizer import Encoded
from service.input import encode_input
from service.inspection import token_fields
from service.inspector import inspector_of
from service.routes.responses import PROBLEMS_OF_A_POST, json_response
from service.schemas.model import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)

router = APIRouter(tags=["text"], responses=PROBLEMS_OF_A_POST)


@router.post(
    "/v1/tokenize",
    operation_id="tokenize",
    summary="A text's tokens, with offsets in bytes, characters and UTF-16 units",
    response_model=TokenizeAnswer,
)
async def tokenize(
    http: Request,
    asked: Annotated[
        TokenizeRequest,
        Body(openapi_examples={"both languages": {"value": {"text": "猫 means cat."}}}),
    ],
) -> Response:
    """The context's length is no limit here; the text's size in bytes is."""
    inspector = inspector_of(http)

    def read() -> Response:
        encoded = encode_input(
            inspector.opened,
            inspector.settings,
            text=asked.text,
            token_ids=None,
            add_bos=asked.add_bos,
            parse_special=asked.parse_special,
        )
        tokenizer = inspector.opened.tokenizer
        assert tokenizer is not None  # encode_input refuses a text without one
        return json_response(
            {
                "text": encoded.text,
                "n_tokens": len(encoded.ids),
                "token_ids": encoded.ids,
                "bos_added": encoded.bos_added,
                "tokens": [token_fields(token) for token in tokenizer.tokens(encoded)],
            }
        )

    return await inspector.off_loop(read)


@router.post("/v1/detokenize", operation_id="detokenize", summary="The text of token ids")
async def detokenize(
    http: Request,
    asked: Annotated[
        DetokenizeRequest,
        Body(openapi_examples={"two tokens": {"value": {"token_ids": [300, 301]}}}),
    ],
) -> DetokenizeAnswer:
    """Special tokens are spelled out; bytes that are no UTF-8 become U+FFFD."""
    inspector = inspector_of(http)

    def read() -> Encoded:
        return encode_input(
            inspector.opened, inspector.settings, text=None, token_ids=asked.token_ids
        )

    encoded = await inspector.off_loop(read)
    return DetokenizeAnswer(text=encoded.text, n_tokens=len(encoded.ids))
