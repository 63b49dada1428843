"""`fluoroscope-client`: a server's answers in the terminal. Asks by the client's own calls."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from io import TextIOWrapper
from typing import Any

from fluoroscope_client.answers_of_generation import Candidate
from fluoroscope_client.answers_of_parameters import TreeNode
from fluoroscope_client.call import Call
from fluoroscope_client.client import Fluoroscope
from fluoroscope_client.connection import __version__
from fluoroscope_client.errors import ConnectError, FluoroscopeError, TimedOut, Unauthorized
from fluoroscope_client.labels import CONTINUED, clipped, padded, visible
from fluoroscope_client.terminal import Screen, bar, draw_map, table

Answer = Callable[[Fluoroscope, argparse.Namespace, Screen], Iterator[str]]
LOCAL = "http://127.0.0.1:8000"


class _Raw(Fluoroscope):
    """Gives the body of each answer as it came, for --json."""

    def _send(self, call: Call[Any]) -> Any:
        return super()._send(replace(call, parse=lambda _, body: body.decode()))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 where the server did not answer, 2 where it could not be asked."""
    given = _parser().parse_args(arguments, _defaults())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal of another alphabet shows a ? instead
            stream.reconfigure(errors="replace")
    if getattr(given, "text", None) == "-":
        given.text = sys.stdin.read()
    try:
        kind = _Raw if given.json else Fluoroscope
        with kind(given.url, key=given.key, timeout=given.timeout, wire="json") as scope:
            answer: Answer = _as_json if given.json else given.answer
            for line in answer(scope, given, Screen.of(sys.stdout)):
                print(line, flush=True)
    except (FluoroscopeError, TypeError, ValueError) as error:
        print(f"fluoroscope-client: {_told(error, given)}", file=sys.stderr)
        return 1 if isinstance(error, FluoroscopeError) else 2
    except BrokenPipeError:  # whoever read the lines has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    return 0


def _told(error: Exception, given: argparse.Namespace) -> str:
    if isinstance(error, ConnectError) and not isinstance(error, TimedOut):
        return f"{error}\nStart a server with `fluoroscope serve`, or say where one is by --url."
    if isinstance(error, Unauthorized):
        return f"{error}\nGive the server's key by --key or FLUOROSCOPE_KEY."
    return str(error)


def _defaults() -> argparse.Namespace:
    """Of the options that stand before the command or after it: a default of the command's own
    would undo what was said before it."""
    return argparse.Namespace(
        url=os.environ.get("FLUOROSCOPE_URL", LOCAL),
        key=os.environ.get("FLUOROSCOPE_KEY"),
        timeout=60.0,
        json=False,
    )


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    common.add_argument("--url", help=f"the server; default FLUOROSCOPE_URL, or {LOCAL}")
    common.add_argument(
        "--key", help="the server's key; better FLUOROSCOPE_KEY, which no list of processes shows"
    )
    common.add_argument("--timeout", type=float, help="seconds; default 60")
    common.add_argument("--json", action="store_true", help="the answer as it came")
    parser = argparse.ArgumentParser(
        prog="fluoroscope-client",
        description="Look inside a running transformer.",
        epilog="The options but --version may stand after the command as well; the last one holds.",
        parents=[common],
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, answer: Answer, ask: Callable[..., Any], text: bool) -> Any:
        words = (answer.__doc__ or "").strip()
        made = commands.add_parser(
            name, parents=[common], help=words, description=words, allow_abbrev=False
        )
        made.set_defaults(answer=answer, ask=ask)
        if text:
            made.add_argument("text", help="the text; - reads it from standard input")
        return made

    made = command("attention", attention, _ask_attention, True)
    made.add_argument("--layer", type=int, default=0, help="default 0; -1 is the last")
    made.add_argument("--head", type=int, help="default: the mean of all heads")
    made.add_argument(
        "--stage", default="pattern", choices=("dots", "scores", "masked_scores", "pattern")
    )
    made = command("logits", logits, _ask_logits, True)
    made.add_argument("--top", type=int, default=10, help="rows of each table; default 10")
    made.add_argument("--all", action="store_true", help="after every token, not only the last")
    made = command("generate", generate, _ask_completion, True)
    made.add_argument("--max-new-tokens", type=int, help="default: the server's")
    made.add_argument("--temperature", type=float, default=1.0, help="0 takes the likeliest")
    made.add_argument("--top-k", type=int, help="keep only so many")
    made.add_argument("--top-p", type=float, help="keep only the likeliest up to this sum")
    made.add_argument("--seed", type=int, help="makes it repeat")
    made.add_argument("--stop", action="append", default=[], help="a string that ends it")
    made.add_argument("--top", type=int, default=5, help="choices to show; 0: the text alone")
    command("tokenize", tokenize, lambda scope, given: scope.tokenize(given.text), True)
    made = command("parameters", parameters, _ask_parameters, False)
    made.add_argument("--preset", help="of a named configuration, not of the loaded model")
    made.add_argument("--depth", type=int, default=2, help="levels of the tree; default 2")
    made.add_argument("--context", type=int, help="tokens that costs are for")
    return parser


def _as_json(scope: Fluoroscope, given: argparse.Namespace, screen: Screen) -> Iterator[str]:
    yield given.ask(scope, given)


def _ask_attention(scope: Fluoroscope, given: argparse.Namespace) -> Any:
    part: Any = {"aggregate": "mean"} if given.head is None else {"heads": given.head}
    return scope.attention(given.text, layers=given.layer, stages=(given.stage,), **part)


def attention(scope: Fluoroscope, given: argparse.Namespace, screen: Screen) -> Iterator[str]:
    """draw the attention map of one head; a line for each query, a column for each key"""
    reading = _ask_attention(scope, given)
    (tensor,) = reading.tensors.values()
    outer = {axis: tensor.indices(axis)[0] for axis in tensor.axes[:-2]}
    place = " · ".join(f"{axis} {index}" for axis, index in outer.items())
    heads = "" if given.head is not None else " · mean of all heads"
    yield f"{tensor.name} · {place}{heads} · {reading.model['id']}"
    yield from draw_map(tensor.sel(**outer), screen)


def _ask_logits(scope: Fluoroscope, given: argparse.Namespace) -> Any:
    return scope.logits(given.text, top=given.top, positions="all" if given.all else -1)


def logits(scope: Fluoroscope, given: argparse.Namespace, screen: Screen) -> Iterator[str]:
    """the likeliest next tokens, with probabilities over the whole vocabulary"""
    reading = _ask_logits(scope, given)
    for said in reading.predictions:
        place = said["position"]
        yield f"after {place} {visible(reading.tokens[place]['display'] or CONTINUED)}"
        rows = [
            [
                str(rank),
                clipped(visible(token["text"] or str(token["id"])), 24),
                f"{token['probability']:.4f}",
                f"{token['logit']:.3f}",
                bar(token["probability"], 30),
            ]
            for rank, token in enumerate(said["top"], 1)
        ]
        yield from table(rows, "r rr")


def _ask_completion(scope: Fluoroscope, given: argparse.Namespace) -> Any:
    return scope.completion(given.text, **_sampling(given))


def _sampling(given: argparse.Namespace) -> Any:
    names = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop", "top")
    return {name: getattr(given, name) for name in names}


def generate(scope: Fluoroscope, given: argparse.Namespace, screen: Screen) -> Iterator[str]:
    """carry a text on, and show at each step what was likely"""
    with scope.generate(given.text, **_sampling(given)) as generation:
        for step in generation:
            if not given.top:
                print(_safe(step.text or ""), end="", flush=True)
                continue
            drawn = next((row for row in step.candidates if row["drawn"]), None)
            chance = "" if drawn is None else f"{drawn['probability']:.3f}"
            head = f"{step.position:>4} {padded(visible(step.token['display'] or CONTINUED), 14)}"
            choices = "  ".join(map(_choice, step.candidates))
            yield clipped(f"{head} {chance:>5}  {choices}", screen.columns)
    yield ""
    for sample in generation.samples:
        if given.top:
            yield _safe(given.text + (sample["text"] or ""))
        yield f"({sample['reason'].replace('_', ' ')})"


def _choice(row: Candidate) -> str:
    chance = f"({row['uncut']:.3f} cut)" if row["cut_by"] else f"{row['probability']:.3f}"
    return f"{clipped(visible(row['text'] or str(row['id'])), 14)} {chance}"


def _safe(text: str) -> str:
    """A text as it is, but for what a terminal would obey."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else visible(character)
        for character in text
    )


def tokenize(scope: Fluoroscope, given: argparse.Namespace, screen: Screen) -> Iterator[str]:
    """the tokens of a text"""
    said = scope.tokenize(given.text)
    rows = [["index", "id", "token", "bytes", "characters"]]
    for token in said["tokens"]:
        span = "" if token["char_start"] is None else f"{token['char_start']}–{token['char_end']}"
        label = visible(token["display"] or CONTINUED)
        rows.append([str(token["index"]), str(token["id"]), label, token["bytes_hex"], span])
    yield from table(rows, "rr")


def _ask_parameters(scope: Fluoroscope, given: argparse.Namespace) -> Any:
    options: Any = {"context": given.context, "depth": given.depth}
    if given.preset is not None:
        return scope.parameters_of(given.preset, **options)
    return scope.parameters(**options)


def parameters(scope: Fluoroscope, given: argparse.Namespace, screen: Screen) -> Iterator[str]:
    """where a model's parameters are, how many, and why so many"""
    report = _ask_parameters(scope, given)
    rows = [*_branch(report["tree"], 0, report["tree"]["count"])]
    yield from (clipped(line, screen.columns) for line in table(rows, " rr"))
    totals = report["totals"]
    yield f"{totals['unique']:,} parameters, {totals['without_embeddings']:,} without embeddings"


def _branch(node: TreeNode, depth: int, whole: int) -> Iterator[list[str]]:
    share = f"{node['count'] / whole:.1%}" if whole else ""
    yield ["  " * depth + node["id"], f"{node['count']:,}", share, node["formula"]]
    for child in node["children"]:
        yield from _branch(child, depth + 1, whole)


if __name__ == "__main__":
    sys.exit(main())
