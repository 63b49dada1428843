"""GPTConfig: every architectural choice of the hand-built GPT, checked once when it is made."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

Positions = Literal["rope", "learned", "none"]
Pairing = Literal["interleaved", "half"]
Norm = Literal["layernorm", "rmsnorm"]
Activation = Literal["gelu", "gelu_tanh", "swiglu"]
ScalingKind = Literal["linear", "ntk", "dynamic", "yarn", "llama3"]

# The fields of GPTConfig that name one of a few choices.
CHOICES = {
    "positions": Positions,
    "rope_pairing": Pairing,
    "norm": Norm,
    "activation": Activation,
}


class ConfigError(ValueError):
    """A configuration that no model can have; the message holds the numbers that clash."""


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched past the context a model was trained on.

    The formulas are in `model.rope`. Fields a kind does not use are ignored by it.
    """

    kind: ScalingKind
    factor: float
    original_context: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        _require_choice("rope scaling kind", self.kind, ScalingKind)
        if not self.factor >= 1.0:
            raise ConfigError(f"rope scaling factor is {self.factor}; it must be at least 1")
        if self.kind in ("dynamic", "yarn", "llama3") and not self.original_context:
            raise ConfigError(f"rope scaling {self.kind!r} needs original_context, the trained one")
        if self.kind == "llama3" and not self.low_freq_factor < self.high_freq_factor:
            raise ConfigError(
                f"low_freq_factor {self.low_freq_factor} must be below "
                f"high_freq_factor {self.high_freq_factor}"
            )


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The shape and the choices of one GPT.

    Counts: `n_layer` blocks, `d_model` wide, `n_head` query heads of size `d_head`,
    `n_kv_head` key/value heads (query head h reads key/value head h // (n_head / n_kv_head)),
    `d_mlp` feed-forward neurons, `vocab_size` rows of the embedding, at most `n_ctx` tokens.
    Left at None, `n_kv_head` is n_head, `d_head` is d_model / n_head, `d_mlp` is 4 d_model and
    `rotary_dim` (how much of each head RoPE turns) is d_head.
    """

    n_layer: int
    d_model: int
    n_head: int
    vocab_size: int
    n_ctx: int
    n_kv_head: int = field(default=None)  # type: ignore[assignment]
    d_head: int = field(default=None)  # type: ignore[assignment]
    d_mlp: int = field(default=None)  # type: ignore[assignment]

    positions: Positions = "rope"
    rope_pairing: Pairing = "interleaved"
    rope_base: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rotary_dim: int = field(default=None)  # type: ignore[assignment]

    norm: Norm = "layernorm"
    norm_eps: float = 1e-5
    norm_bias: bool = True
    qk_norm: bool = False
    activation: Activation = "gelu"
    qkv_bias: bool = True
    o_bias: bool = True
    mlp_bias: bool = True
    tied: bool = False

    score_scale: float | None = None
    window: int | None = None
    windowed_layers: tuple[int, ...] | None = None
    parallel_residual: bool = False

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            _require_choice(name, getattr(self, name), choices)
        for name in ("n_layer", "d_model", "n_head", "vocab_size", "n_ctx"):
            _require_positive(name, getattr(self, name))
        self._fill("n_kv_head", self.n_head)
        given: int | None = self.d_head
        if given is None and self.d_model % self.n_head:
            raise ConfigError(
                f"d_model {self.d_model} is not divisible by n_head {self.n_head}: "
                f"every head needs a whole share of the width"
            )
        self._fill("d_head", self.d_model // self.n_head)
        self._fill("d_mlp", 4 * self.d_model)
        self._fill("rotary_dim", self.d_head)
        for name in ("n_kv_head", "d_head", "d_mlp", "rotary_dim"):
            _require_positive(name, getattr(self, name))
        if self.n_head % self.n_kv_head:
            raise ConfigError(
                f"n_head {self.n_head} is not divisible by n_kv_head {self.n_kv_head}: "
                f"every key/value head serves the same number of query heads"
            )
        if self.rotary_dim > self.d_head:
            raise ConfigError(f"rotary_dim {self.rotary_dim} is over d_head {self.d_head}")
        if self.positions == "rope" and self.rotary_dim % 2:
            raise ConfigError(
                f"rotary_dim {self.rotary_dim} is odd: RoPE turns pairs of dimensions"
            )
        if self.norm == "rmsnorm" and self.norm_bias:
            raise ConfigError("an rmsnorm has no bias: set norm_bias to false")
        if not self.norm_eps > 0:
            raise ConfigError(f"norm_eps is {self.norm_eps}; it must be over 0")
        if not self.rope_base > 1:
            raise ConfigError(f"rope_base is {self.rope_base}; it must be over 1")
        if self.score_scale is not None and not self.score_scale > 0:
            raise ConfigError(f"score_scale is {self.score_scale}; it must be over 0")
        if self.window is not None:
            _require_positive("window", self.window)
        if not isinstance(self.rope_scaling, RopeScaling | None):
            raise ConfigError(f"rope_scaling is {self.rope_scaling!r}, not a scaling")

    def _fill(self, name: str, value: int) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    @property
    def gated(self) -> bool:
        """Whether the feed-forward has a gate beside its up projection."""
        return self.activation == "swiglu"

    @property
    def kv_head_of(self) -> list[int]:
        """For each query head the key/value head that it reads."""
        share = self.n_head // self.n_kv_head
        return [head // share for head in range(self.n_head)]

    def window_of(self, layer: int) -> int | None:
        """How many keys, itself included, a query of this layer may look back on; None for all."""
        if self.windowed_layers is not None and layer not in self.windowed_layers:
            return None
        return self.window

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; `from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> GPTConfig:
        """Raises ConfigError for a key that this class does not have or one that is missing."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ConfigError(f"unknown config keys {unknown}; known are {sorted(known)}")
        required = {"n_layer", "d_model", "n_head", "vocab_size", "n_ctx"}
        if missing := sorted(required - set(values)):
            raise ConfigError(f"config keys {missing} are missing")
        values = dict(values)
        if isinstance(values.get("rope_scaling"), dict):
            values["rope_scaling"] = RopeScaling(**values["rope_scaling"])
        if values.get("windowed_layers") is not None:
            values["windowed_layers"] = tuple(values["windowed_layers"])
        return cls(**values)


def _require_choice(name: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(get_args(choices))}")


def _require_positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1")
