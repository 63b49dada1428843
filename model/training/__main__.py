"""`python -m model.training`: one run from the command line."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from model.config import GPTConfig
from model.training.config import TrainConfig, parse_piecewise, parse_weight
from model.training.trainer import train


def main(arguments: list[str] | None = None) -> int:
    """Train as the options say; an error that the user can mend is one line and status 2."""
    parser = argparse.ArgumentParser(prog="python -m model.training", description=main.__doc__)
    parser.add_argument("--data", type=Path, help="folder of .txt, .tsv, .jsonl, .npy, .bin")
    parser.add_argument("--out", type=Path, required=True, help="folder for all that is written")
    parser.add_argument("--weight", action="append", default=[], metavar="NAME=W[@UNTIL:W…]",
                        help="share of a source, constant or by fraction of the run")  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on from checkpoint.pt in --out")
    for name, value in (("n-layer", 6), ("d-model", 384), ("n-head", 6), ("vocab-size", 6144),
                        ("n-ctx", 512)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--context", type=parse_piecewise, metavar="N[@UNTIL:N…]",
                        help="tokens in a training row, if not n-ctx throughout")  # fmt: skip
    parser.add_argument("--untied", action="store_true", help="an unembedding of its own")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; else one is trained")
    parser.add_argument("--compile", action="store_true", help="torch.compile the step")
    texts = ("precision", "device")
    whole = ("steps", "rows", "accumulate", "ns_steps", "warmup_steps", "threads", "seed",
             "held_out_every", "eval_tokens", "eval_pairs", "eval_steps", "log_steps")  # fmt: skip
    real = ("minutes", "muon_lr", "adam_lr", "weight_decay", "decay", "clip", "eval_minutes",
            "checkpoint_minutes")  # fmt: skip
    defaults = {field.name: field.default for field in fields(TrainConfig)}
    for names, kind in ((texts, str), (whole, int), (real, float)):
        for name in names:
            option = f"--{name.replace('_', '-')}"
            parser.add_argument(option, type=kind, default=defaults[name])
    given = parser.parse_args(arguments)
    try:
        config = TrainConfig(
            data=given.data,
            out=given.out,
            model=GPTConfig(
                n_layer=given.n_layer, d_model=given.d_model, n_head=given.n_head,
                vocab_size=given.vocab_size, n_ctx=given.n_ctx, tied=not given.untied,
            ),
            weights=tuple(parse_weight(spec) for spec in given.weight),
            tokenizer=given.tokenizer,
            compile=given.compile,
            context=given.context,
            **{name: getattr(given, name) for name in (*texts, *whole, *real)},
        )  # fmt: skip
        outcome = train(config, resume=given.resume)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if outcome.stopped == "done" else 130


if __name__ == "__main__":
    sys.exit(main())
