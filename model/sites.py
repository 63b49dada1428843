"""The vocabulary: every quantity inside a run that can be read or edited, with its axes.

A name here is the local variable in the model, the key on the wire and the word in the docs.
Knows nothing of how values are captured; `model.tap` does that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from model.config import GPTConfig

Axis = Literal[
    "layer",
    "head",
    "kv_head",
    "position",
    "query",
    "key",
    "d_head",
    "d_model",
    "d_mlp",
    "vocab",
    "stat",
    "one",
]
SELECTABLE: tuple[Axis, ...] = ("layer", "head", "kv_head", "position", "query", "key")
LETTER: dict[Axis, str] = {
    "layer": "L",
    "head": "H",
    "kv_head": "K",
    "position": "T",
    "query": "Q",
    "key": "S",
    "d_head": "D",
    "d_model": "C",
    "d_mlp": "F",
    "vocab": "V",
    "one": "1",
}


class SiteError(ValueError):
    """A site that does not exist, is ambiguous, or is not in this model."""


def _always(config: GPTConfig) -> bool:
    return True


@dataclass(frozen=True)
class Site:
    """One quantity: `axes` in C order, the layer axis first where the site has one.

    `alias` is TransformerLens' name for it, `{layer}` standing for the layer. `spans_steps`: its
    positions are those of the whole text at every step of a generation; elsewhere a step has the
    positions, or queries, of its new tokens only.
    """

    name: str
    axes: tuple[Axis, ...]
    meaning: str
    alias: str | None = None
    present: Callable[[GPTConfig], bool] = _always
    spans_steps: bool = False

    @property
    def layered(self) -> bool:
        return self.axes[0] == "layer"

    @property
    def along(self) -> Axis | None:
        """The axis that the tokens of a run lie on."""
        axes: tuple[Axis, ...] = ("position", "query")
        return next((axis for axis in axes if axis in self.axes), None)

    @property
    def symbolic_shape(self) -> str:
        return " ".join(LETTER[axis] for axis in self.axes)

    def sizes(self, config: GPTConfig, n_tokens: int) -> tuple[int, ...]:
        """The whole site's size along each of its axes, for a run over n_tokens tokens."""
        size: dict[Axis, int] = {
            "layer": config.n_layer,
            "head": config.n_head,
            "kv_head": config.n_kv_head,
            "position": n_tokens,
            "query": n_tokens,
            "key": n_tokens,
            "d_head": config.d_head,
            "d_model": config.d_model,
            "d_mlp": config.d_mlp,
            "vocab": config.vocab_size,
            "one": 1,
        }
        return tuple(size[axis] for axis in self.axes)


_RESIDUAL: tuple[Axis, ...] = ("layer", "position", "d_model")
_SCALE: tuple[Axis, ...] = ("layer", "position", "one")
_QUERY: tuple[Axis, ...] = ("layer", "head", "position", "d_head")
_KEY: tuple[Axis, ...] = ("layer", "kv_head", "position", "d_head")
_CELLS: tuple[Axis, ...] = ("layer", "head", "query", "key")
_NEURONS: tuple[Axis, ...] = ("layer", "position", "d_mlp")


def _norm(name: str, layered: bool, present: Callable[[GPTConfig], bool]) -> list[Site]:
    prefix = "blocks.{layer}." if layered else ""
    cut = 0 if layered else 1
    return [
        Site(
            f"{name}.scale",
            _SCALE[cut:],
            "what the norm divides by",
            f"{prefix}{name}.hook_scale",
            present,
        ),
        Site(
            f"{name}.normalized",
            _RESIDUAL[cut:],
            "the normed vector before gain and bias",
            None,
            present,
        ),
        Site(
            f"{name}.out",
            _RESIDUAL[cut:],
            "the normed vector after gain and bias: what is read next",
            None,
            present,
        ),
    ]


def _has_learned_positions(config: GPTConfig) -> bool:
    return config.positions == "learned"


def _is_sequential(config: GPTConfig) -> bool:
    return not config.parallel_residual


def _is_gated(config: GPTConfig) -> bool:
    return config.gated


# In the order in which a run meets them.
_ALL = [
    Site("embed", ("position", "d_model"), "token vectors", "hook_embed"),
    Site(
        "pos_embed",
        ("position", "d_model"),
        "learned position vectors",
        "hook_pos_embed",
        _has_learned_positions,
    ),
    Site(
        "resid_pre",
        _RESIDUAL,
        "the residual stream before a block",
        "blocks.{layer}.hook_resid_pre",
    ),
    *_norm("ln1", True, _always),
    Site(
        "attn.q",
        _QUERY,
        "queries, bias included, before any q/k norm and rotation",
        "blocks.{layer}.attn.hook_q",
    ),
    Site("attn.k", _KEY, "keys, likewise", "blocks.{layer}.attn.hook_k"),
    Site("attn.v", _KEY, "values", "blocks.{layer}.attn.hook_v"),
    Site(
        "attn.rot_q",
        _QUERY,
        "queries as they meet the keys: after q/k norm and rotation",
        "blocks.{layer}.attn.hook_rot_q",
    ),
    Site(
        "attn.rot_k",
        _KEY,
        "keys as they meet the queries: after q/k norm and rotation",
        "blocks.{layer}.attn.hook_rot_k",
        spans_steps=True,
    ),
    Site("attn.dots", _CELLS, "rot_q · rot_k, unscaled"),
    Site("attn.scores", _CELLS, "dots × scale (1/√d_head unless the model says otherwise)"),
    Site(
        "attn.masked_scores",
        _CELLS,
        "scores with −∞ where the mask forbids",
        "blocks.{layer}.attn.hook_attn_scores",
    ),
    Site(
        "attn.pattern",
        _CELLS,
        "softmax of masked_scores over the keys: each row sums to 1",
        "blocks.{layer}.attn.hook_pattern",
    ),
    Site("attn.z", _QUERY, "pattern × v: what each head gathered", "blocks.{layer}.attn.hook_z"),
    Site(
        "attn.result",
        ("layer", "head", "position", "d_model"),
        "each head's own write into the residual stream, computed only when asked for",
        "blocks.{layer}.attn.hook_result",
    ),
    Site("attn_out", _RESIDUAL, "what attention writes", "blocks.{layer}.hook_attn_out"),
    Site(
        "resid_mid",
        _RESIDUAL,
        "the residual stream between attention and feed-forward",
        "blocks.{layer}.hook_resid_mid",
        _is_sequential,
    ),
    *_norm("ln2", True, _always),
    Site(
        "mlp.pre",
        _NEURONS,
        "what enters the non-linearity (gated models: W_gate · x)",
        "blocks.{layer}.mlp.hook_pre",
    ),
    Site(
        "mlp.pre_linear",
        _NEURONS,
        "W_up · x of a gated model",
        "blocks.{layer}.mlp.hook_pre_linear",
        _is_gated,
    ),
    Site("mlp.post", _NEURONS, "what W_down multiplies", "blocks.{layer}.mlp.hook_post"),
    Site("mlp_out", _RESIDUAL, "what the feed-forward writes", "blocks.{layer}.hook_mlp_out"),
    Site(
        "resid_post",
        _RESIDUAL,
        "the residual stream after a block",
        "blocks.{layer}.hook_resid_post",
    ),
    *_norm("ln_final", False, _always),
    Site("logits", ("position", "vocab"), "the model's answer, before any softmax"),
]
SITES: dict[str, Site] = {site.name: site for site in _ALL}
ORDER: dict[str, int] = {name: order for order, name in enumerate(SITES)}
ATTENTION_STAGES = ("dots", "scores", "masked_scores", "pattern")

_BY_ALIAS = {site.alias: site.name for site in _ALL if site.alias}
_LAYER = re.compile(r"^blocks\.(\d+)\.")


def resolve(name: str, config: GPTConfig) -> tuple[Site, int | None]:
    """The site of a name or TransformerLens alias, and the layer that the alias spells.

    Raises SiteError for an unknown name, for an alias that means two things, and for a site that
    this model does not have.
    """
    found = _LAYER.match(name)
    layer = int(found[1]) if found else None
    known = _BY_ALIAS.get(_LAYER.sub("blocks.{layer}.", name), name)
    if name.endswith("hook_normalized"):
        norm = name.split(".")[-2]
        raise SiteError(
            f"{name!r} is before the gain in TransformerLens' RMSNorm and after it in its "
            f"LayerNorm; ask for '{norm}.normalized' (before) or '{norm}.out' (after)"
        )
    if known not in SITES:
        raise SiteError(f"there is no site {name!r}; GET /v1/sites lists all {len(SITES)}")
    site = SITES[known]
    if not site.present(config):
        raise SiteError(f"this model has no {site.name!r}: {_why_absent(site)}")
    if layer is not None and layer >= config.n_layer:
        raise SiteError(
            f"{name!r} names layer {layer}; this model has layers 0 to {config.n_layer - 1}"
        )
    return site, layer


def _why_absent(site: Site) -> str:
    if site.present is _has_learned_positions:
        return "its positions are not learned vectors"
    if site.present is _is_gated:
        return "its feed-forward is not gated"
    return "attention and feed-forward read the same residual in parallel"
