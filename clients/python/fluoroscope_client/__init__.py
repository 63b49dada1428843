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
from fluoroscope_client.reading import Reading
from fluoroscope_client.tensor import Tensor

__all__ = [
    "AnswerError",
    "AsyncFluoroscope",
    "ConnectError",
    "Fluoroscope",
    "FluoroscopeError",
    "InvalidRequest",
    "NotReady",
    "ProblemError",
    "Reading",
    "ServerError",
    "Tensor",
    "TimedOut",
    "TooBusy",
    "Unauthorized",
    "__version__",
    "capture",
    "edits",
]
