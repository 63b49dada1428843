"""Every setting, once: environment (FLUOROSCOPE_…) and command line flags are read into it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MIB = 1 << 20


class Settings(BaseSettings):
    """Defaults are safe on one machine for one person; each is shown in GET /v1/model's limits."""

    model_config = SettingsConfigDict(env_prefix="FLUOROSCOPE_", extra="forbid", frozen=True)

    model: str = Field(
        "demo",
        description="demo, preset:NAME, a folder or file, org/name or org/name@revision",
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="auto: CUDA, then MPS, then CPU"
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of the weights")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        8000, description="port; 0 takes a free one"
    )
    threads: Annotated[int, Field(ge=0)] = Field(
        0, description="of the processor for one run; 0 leaves it to torch"
    )

    key: SecretStr | None = Field(
        None, description="every route but health and docs asks for it; safer in the environment"
    )
    allow_open: bool = Field(
        False, description="listen beyond loopback without a key: anybody may then use the model"
    )
    origins: Annotated[list[str], NoDecode] = Field(
        default_factory=list, description="browser origins beside localhost, comma-separated"
    )
    hosts: Annotated[list[str], NoDecode] = Field(
        default_factory=list, description="Host names beside loopback, comma-separated; * for any"
    )

    max_body_bytes: Annotated[int, Field(ge=1)] = Field(MIB, description="of a request's body")
    body_seconds: Annotated[float, Field(gt=0)] = Field(10.0, description="to receive a body in")
    max_text_bytes: Annotated[int, Field(ge=1)] = Field(
        64 * 1024, description="of a text, before it is tokenized"
    )
    max_tokens: Annotated[int, Field(ge=1)] = Field(
        1024, description="of one input; the model's context where that is shorter"
    )
    max_answer_bytes: Annotated[int, Field(ge=1)] = Field(
        128 * MIB, description="of one answer's tensors, estimated before the run"
    )
    max_in_flight_bytes: Annotated[int, Field(ge=1)] = Field(
        512 * MIB, description="of all answers being computed and sent"
    )
    lab_dimensions: Annotated[int, Field(ge=1)] = Field(
        1024, description="of a vector that a lab is given"
    )
    lab_tokens: Annotated[int, Field(ge=1)] = Field(64, description="of a lab's sequence")
    waiting: Annotated[int, Field(ge=0)] = Field(16, description="requests that may wait to run")
    wait_seconds: Annotated[float, Field(gt=0)] = Field(10.0, description="to wait at most")
    run_seconds: Annotated[float, Field(gt=0)] = Field(
        30.0, description="one run may take, or one step of a generation"
    )
    new_tokens: Annotated[int, Field(ge=1)] = Field(
        32, description="that a generation gives for each sample where none are asked for"
    )
    max_new_tokens: Annotated[int, Field(ge=1)] = Field(
        256, description="that a generation may be asked for, for each sample"
    )
    generations: Annotated[int, Field(ge=1)] = Field(
        4, description="that may be under way at once; their steps take turns with other runs"
    )

    grace_seconds: Annotated[float, Field(ge=0)] = Field(
        30.0, description="what is under way may take to finish once the server is told to stop"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="the least that is logged"
    )
    log_format: Literal["text", "json"] = Field("text", description="of a line of the log")

    @model_validator(mode="before")
    @classmethod
    def _split_lists(cls, values: dict[str, object]) -> dict[str, object]:
        for name in ("origins", "hosts"):
            value = values.get(name)
            if isinstance(value, str):
                values[name] = [part.strip() for part in value.split(",") if part.strip()]
        return values

    @model_validator(mode="after")
    def _open_only_when_told(self) -> Self:
        if self.key is not None and not self.key.get_secret_value().strip():
            raise ValueError("the key is empty: leave it out, or give one that nobody can guess")
        if self.host not in LOOPBACK and self.key is None and not self.allow_open:
            raise ValueError(
                f"listening on {self.host} lets others in: set a key (FLUOROSCOPE_KEY), or say "
                "--allow-open if anybody may use this server"
            )
        if "*" in self.origins and self.key is not None:
            raise ValueError("origins * with a key would let every web page use the key's answers")
        return self
