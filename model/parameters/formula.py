"""Formulas over the sizes of a model: sums of products that can be written, worked out and added.

Knows nothing of which tensor has which size. A written formula uses `·`, `+`, brackets and
superscripts only; a worked one is `sum with numbers = result`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from model.config import GPTConfig

SYMBOLS: dict[str, dict[str, str]] = {
    "V": {"en": "tokens in the vocabulary (vocab_size)", "zh": "词表大小（vocab_size）"},
    "n_ctx": {"en": "longest context, in tokens", "zh": "最大上下文长度（token 数）"},
    "L": {"en": "layers (n_layer)", "zh": "层数（n_layer）"},
    "H": {"en": "query heads (n_head)", "zh": "查询头数（n_head）"},
    "K": {"en": "key/value heads (n_kv_head)", "zh": "键/值头数（n_kv_head）"},
    "D": {"en": "size of one head (d_head)", "zh": "每个头的维度（d_head）"},
    "T": {"en": "tokens in the context that is costed", "zh": "计算开销时的上下文 token 数"},
    "S": {
        "en": "keys that the last token may see, summed over the layers",
        "zh": "最后一个 token 能看到的键数，各层相加",
    },
    "P": {
        "en": "query-key pairs that the mask leaves, summed over the layers",
        "zh": "掩码留下的“查询–键”对数，各层相加",
    },
    "N": {"en": "parameters, each stored number once", "zh": "参数量（每个存储的数只算一次）"},
    "M": {"en": "weights that multiply a token's vector", "zh": "与 token 向量相乘的权重数"},
    "d": {"en": "width of the residual stream (d_model)", "zh": "残差流宽度（d_model）"},
    "f": {"en": "feed-forward neurons (d_mlp)", "zh": "前馈网络神经元数（d_mlp）"},
}
_PLACE = {symbol: place for place, symbol in enumerate(SYMBOLS)}
_POWERS = {1: "", 2: "²", 3: "³", 4: "⁴"}


@dataclass(frozen=True)
class Polynomial:
    """`terms`: products of symbols, each with its whole factor, in the order of their adding."""

    terms: tuple[tuple[tuple[str, ...], int], ...] = ()

    def __add__(self, other: Polynomial) -> Polynomial:
        return _collect((*self.terms, *other.terms))

    def __mul__(self, other: Polynomial | int) -> Polynomial:
        right = other.terms if isinstance(other, Polynomial) else (((), other),)
        return _collect((a + b, m * n) for a, m in self.terms for b, n in right)

    __rmul__ = __mul__

    def value(self, values: Mapping[str, int]) -> int:
        total = 0
        for product, factor in self.terms:
            for symbol in product:
                factor *= values[symbol]
            total += factor
        return total

    @property
    def symbols(self) -> list[str]:
        return sorted({symbol for product, _ in self.terms for symbol in product}, key=_PLACE.get)  # type: ignore[arg-type]

    def written(self, values: Mapping[str, int] | None = None) -> str:
        """In symbols, or with `values` in their place: `12·d² + 13·d`, `12 × 384² + 13 × 384`."""
        return " + ".join(_write(product, n, values) for product, n in self.terms) or "0"


ZERO = Polynomial()


def symbol(name: str) -> Polynomial:
    return Polynomial((((name,), 1),))


def total(polynomials: Iterable[Polynomial]) -> Polynomial:
    return sum(polynomials, start=ZERO)


def _collect(terms: Iterable[tuple[tuple[str, ...], int]]) -> Polynomial:
    factors: Counter[tuple[str, ...]] = Counter()
    for product, factor in terms:
        factors[tuple(sorted(product, key=_PLACE.__getitem__))] += factor
    return Polynomial(tuple((product, n) for product, n in factors.items() if n))


def _write(product: tuple[str, ...], factor: int, values: Mapping[str, int] | None) -> str:
    powers = Counter(product)
    factors = [f"{factor:,}"] if factor != 1 or not product else []
    factors += [
        f"{name if values is None else format(values[name], ',')}{_POWERS[power]}"
        for name, power in powers.items()
    ]
    return ("·" if values is None else " × ").join(factors)


@dataclass(frozen=True)
class Formula:
    """A number and how it comes about.

    `text` in symbols, `symbols` the value of each, `worked` the sum with numbers and its result.
    """

    text: str
    symbols: dict[str, int] = field(hash=False)
    worked: str
    count: int


def work(
    parts: Polynomial | Sequence[tuple[str | None, Polynomial]], values: Mapping[str, int]
) -> Formula:
    """The formula of a polynomial, or of a sum of polynomials, each `(multiplier, polynomial)`.

    A multiplier is a symbol in front of brackets: `L·(12·d² + 13·d)`.
    """
    parts = [(None, parts)] if isinstance(parts, Polynomial) else parts
    used: set[str] = set()
    texts, sums, count = [], [], 0
    for multiplier, polynomial in parts:
        if not polynomial.terms:
            continue
        text, numbers, value = polynomial.written(), polynomial.written(values), 1
        used.update(polynomial.symbols)
        if multiplier is not None:
            used.add(multiplier)
            text = f"{multiplier}·({text})"
            numbers = f"{values[multiplier]:,} × ({numbers})"
            value = values[multiplier]
        texts.append(text)
        sums.append(numbers)
        count += value * polynomial.value(values)
    return Formula(
        text=" + ".join(texts) or "0",
        symbols={name: values[name] for name in sorted(used, key=_PLACE.__getitem__)},
        worked=f"{' + '.join(sums) or '0'} = {count:,}",
        count=count,
    )


@dataclass(frozen=True)
class Sizes:
    """The config's sizes as symbols, simplified where the config allows it.

    `q` is all query heads' width: d where H·D = d, else H·D. `kv` likewise over the key/value
    heads. `mlp` is 4·d for a plain feed-forward of four times the width, else f.
    """

    values: dict[str, int]
    V: Polynomial
    n_ctx: Polynomial
    L: Polynomial
    D: Polynomial
    d: Polynomial
    q: Polynomial
    kv: Polynomial
    mlp: Polynomial

    @classmethod
    def of(cls, config: GPTConfig) -> Sizes:
        d, whole = symbol("d"), config.n_head * config.d_head == config.d_model
        q = d if whole else symbol("H") * symbol("D")
        plain = not config.gated and config.d_mlp == 4 * config.d_model
        return cls(
            values={
                "V": config.vocab_size,
                "n_ctx": config.n_ctx,
                "L": config.n_layer,
                "H": config.n_head,
                "K": config.n_kv_head,
                "D": config.d_head,
                "d": config.d_model,
                "f": config.d_mlp,
            },
            V=symbol("V"),
            n_ctx=symbol("n_ctx"),
            L=symbol("L"),
            D=symbol("D"),
            d=d,
            q=q,
            kv=q if config.n_kv_head == config.n_head else symbol("K") * symbol("D"),
            mlp=4 * d if plain else symbol("f"),
        )
