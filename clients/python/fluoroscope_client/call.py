"""What a call is: one request and how its answer is read; and how a call becomes a method.

A call is described once, by a function that makes it. `asked` turns that function into a method
which a blocking client answers with the result and an awaiting one with a coroutine of it. Knows
nothing of connections and of no single route.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from fluoroscope_client.answers import json_object
from fluoroscope_client.asking import JSON
from fluoroscope_client.errors import AnswerError

if TYPE_CHECKING:
    from fluoroscope_client.streams import AsyncGeneration, Generation

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and `parse` to read its answer from a media type and a body.

    `patient`: whether a server that names a time is asked again then.
    """

    method: Literal["GET", "POST"]
    path: str
    body: Mapping[str, Any] | None
    parse: Callable[[str, bytes], T]
    accept: str = JSON
    query: Mapping[str, str] | None = None
    patient: bool = True

    def content(self) -> bytes | None:
        """The body as JSON; numpy's arrays and numbers are written as lists and numbers.

        Raises ValueError for NaN, infinities and lone surrogates, which JSON cannot say.
        """
        if self.body is None:
            return None
        return json.dumps(
            self.body,
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
            default=_plain,
        ).encode()


class Blocking:
    """A client whose calls give their result."""


class Awaiting:
    """A client whose calls are awaited."""


class Asked(Generic[P, T]):
    """A call as a method, for type checkers: at run time it is a plain function."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, client: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
        @overload
        def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
        @overload
        def __get__(self, client: Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
        def __get__(self, client: Any, owner: type) -> Any: ...


def asked(build: Callable[Concatenate[Any, P], Call[T]]) -> Asked[P, T]:
    """The method that makes a call and sends it, with the signature and words of its maker."""

    @wraps(build)
    def send(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return client._send(build(client, *args, **kwargs))

    return send  # type: ignore[return-value]


class Streamed(Generic[P]):
    """A call whose steps are iterated over, as a method, for type checkers."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, client: None, owner: type) -> Callable[Concatenate[Any, P], Any]: ...
        @overload
        def __get__(self, client: Blocking, owner: type) -> Callable[P, Generation]: ...
        @overload
        def __get__(self, client: Awaiting, owner: type) -> Callable[P, AsyncGeneration]: ...
        def __get__(self, client: Any, owner: type) -> Any: ...


def streamed(build: Callable[Concatenate[Any, P], Call[None]]) -> Streamed[P]:
    """The method that makes a call and hands out its steps. Nothing is sent before the first."""

    @wraps(build)
    def steps(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return client._steps(build(client, *args, **kwargs))

    return steps  # type: ignore[return-value]


def get(path: str, query: Mapping[str, str] | None = None) -> Call[Any]:
    """A GET whose answer is a JSON object."""
    return Call("GET", path, None, read_object, query=query)


def post(path: str, body: Mapping[str, Any]) -> Call[Any]:
    """A POST whose answer is a JSON object; what is None is left out of the body."""
    given = {name: value for name, value in body.items() if value is not None}
    return Call("POST", path, given, read_object)


def read_object(media_type: str, body: bytes) -> Any:
    """The JSON object in an answer. Raises AnswerError."""
    if media_type != JSON:
        raise AnswerError(f"the answer is {media_type or 'of no type'}, not {JSON}")
    return json_object(body)


def read_nothing(media_type: str, body: bytes) -> None:
    """Of an answer that is read as it comes."""


def member(key: str, kind: type[T]) -> Callable[[str, bytes], T]:
    """Reads one member of the object in an answer."""

    def read(media_type: str, body: bytes) -> T:
        found = read_object(media_type, body).get(key)
        if not isinstance(found, kind):
            raise AnswerError(f"the answer's {key} is no {kind.__name__}")
        return found

    return read


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be sent")
