"""Fluoroscope's Python client: the numbers inside a running transformer, as named numpy arrays."""

from fluoroscope_client import edits
from fluoroscope_client.asking import capture
from fluoroscope_client.client import AsyncFluoroscope, Fluoroscope
from fluoroscope_client.connection import __version__
from fluoroscope_client.errors import (
    AnswerError,
    ConnectError,
    FluoroscopeError,
    InvalidRequest,
    NotReady,
    ProblemError,
    ServerError,
    TimedOut,
    TooBusy,
    Unauthorized,
)
from fluoroscope_client.generation import Completion, Prompt, Step
from fluoroscope_client.parameter import Parameter
from fluoroscope_client.reading import Reading
from fluoroscope_client.streams import AsyncGeneration, Generation
from fluoroscope_client.tensor import Tensor

__all__ = [
    "AnswerError",
    "AsyncFluoroscope",
    "AsyncGeneration",
    "Completion",
    "ConnectError",
    "Fluoroscope",
    "FluoroscopeError",
    "Generation",
    "InvalidRequest",
    "NotReady",
    "Parameter",
    "ProblemError",
    "Prompt",
    "Reading",
    "ServerError",
    "Step",
    "Tensor",
    "TimedOut",
    "TooBusy",
    "Unauthorized",
    "__version__",
    "capture",
    "edits",
]
