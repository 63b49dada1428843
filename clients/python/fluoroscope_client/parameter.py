"""Parameter: one tensor of the model's own parameters, and how it is read off an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fluoroscope_client.answers import ModelIdentity
from fluoroscope_client.answers_of_parameters import Histogram, Picture, Statistics, TensorReport
from fluoroscope_client.errors import AnswerError
from fluoroscope_client.reading import read_answer, tensors_of
from fluoroscope_client.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Parameter:
    """`values` of what was asked for, None where nothing was; the statistics are of the same.

    `selected` names the head, where one was asked for; `picture` says what each value stands for.
    """

    about: TensorReport
    values: Tensor | None
    statistics: Statistics
    histogram: Histogram
    selected: Mapping[str, int]
    picture: Picture | None
    model: ModelIdentity

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.about["shape"]))
        return f"{self.about['name']} ({shape}) {self.about['dtype']} of {self.model['id']}"


def read_parameter(media_type: str, body: bytes) -> Parameter:
    """The Parameter in an answer of either form. Raises AnswerError."""
    said = read_answer(media_type, body)
    try:
        tensors = tensors_of(said["tensors"], None, ())
        return Parameter(
            about=said["tensor"],
            values=next(iter(tensors.values()), None),
            statistics=said["statistics"],
            histogram=said["histogram"],
            selected=said["selected"],
            picture=said["picture"],
            model=said["model"],
        )
    except KeyError as error:
        raise AnswerError(f"the answer lacks a part: {error!r}") from error
