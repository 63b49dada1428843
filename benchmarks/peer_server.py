"""A peer behind the smallest FastAPI route that does the job: ids in, every attention map out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from threading import Lock

import numpy as np
import orjson
import torch
import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel
from torch import Tensor

from benchmarks.peers import PEERS
from benchmarks.sizes import SIZES

JSON, BYTES = "application/json", "application/octet-stream"


class Question(BaseModel):
    token_ids: list[int]
    form: str
    expert: bool = False


def as_json(maps: list[Tensor]) -> Response:
    return Response(json.dumps({"attentions": [m[0].tolist() for m in maps]}), media_type=JSON)


def as_orjson(maps: list[Tensor]) -> Response:
    answer = {"attentions": [m[0].numpy() for m in maps]}
    return Response(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), media_type=JSON)


def as_rounded_orjson(maps: list[Tensor]) -> Response:
    """Four decimals, as Fluoroscope's default: shorter texts to write and to send."""
    return as_orjson([m.round(decimals=4) for m in maps])


def as_bytes(maps: list[Tensor]) -> Response:
    whole = torch.cat(maps).numpy()
    return Response(whole.reshape(-1).view(np.uint8).data, media_type=BYTES)


FORMS: dict[str, Callable[[list[Tensor]], Response]] = {
    "json": as_json,
    "orjson": as_orjson,
    "orjson4": as_rounded_orjson,
    "bytes": as_bytes,
}


def make_app(peer: str, size: str) -> FastAPI:
    app = FastAPI()
    maps = PEERS[peer](SIZES[size])
    one_at_a_time = Lock()  # TransformerLens' hooks sit in the modules that requests share

    @app.get("/ready")
    def ready() -> str:
        return "yes"

    @app.post("/attention")
    def attention(question: Question) -> Response:
        ids = torch.tensor([question.token_ids])
        with one_at_a_time:
            found = maps(ids, question.expert)
        return FORMS[question.form](found)

    return app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("port", type=int)
    given = parser.parse_args()
    torch.set_num_threads(2)
    app = make_app(given.peer, given.size)
    uvicorn.run(app, port=given.port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
