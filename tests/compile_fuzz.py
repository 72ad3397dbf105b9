"""Random functions of tensors, as Python source: what the differential fuzzer of torch.compile compiles.

A `Graph` is drawn from a `random.Random` line by line.  Each line runs eagerly on the CPU at once, which tells whether
it is valid, what it returns, and whether its values are exact.  An exact value is one that every order of arithmetic
gives; only such values are compared, rounded or counted, since one rounding would decide those otherwise.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
DTYPES = ("float32",) * 6 + FLOATS + INTEGERS + ("bool",)
LARGEST = 5000  # elements of a value
# Operators whose gradient jumps where their value does not: a rounding would decide which side is taken.
KINKED = re.compile(r"relu|abs|clamp|maximum|minimum|amax|amin|norm\(|hypot|prod\(")


@dataclass
class Value:
    """A variable of a graph: its name in the source, what it holds on the CPU, and whether that is exact."""

    name: str
    tensor: Tensor
    exact: bool

    @property
    def kind(self) -> str:
        return (
            "float"
            if self.tensor.is_floating_point()
            else "bool"
            if self.tensor.dtype == torch.bool
            else "int"
        )


@dataclass
class Graph:
    """A function's source and its arguments."""

    random: random.Random
    differentiable: bool = False  # what its gradient branches on is exact as well
    lines: list[str] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)  # on the CPU, as they are before the call
    values: list[Value] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for number in range(self.random.randint(1, 3)):
            tensor = self.draw_input()
            self.inputs.append(tensor)
            self.values.append(Value(f"x{number}", clone(tensor), True))
        wanted = self.random.randint(3, 12)
        for _ in range(4 * wanted):
            if len(self.lines) == wanted:
                break
            self.add(self.random.choice(KINDS))

    @property
    def is_half(self) -> bool:
        """Whether a value has so few bits that results of one formula differ visibly."""
        return any(v.kind == "float" and v.tensor.itemsize == 2 for v in self.values)

    @property
    def source(self) -> str:
        outputs = [v.name for v in self.values if v.name not in self.used] or [self.values[-1].name]
        arguments = ", ".join(f"x{i}" for i in range(len(self.inputs)))
        return "\n    ".join([f"def f({arguments}):", *self.lines, f"return {', '.join(outputs)},"])

    def __str__(self) -> str:
        layouts = [
            f"x{i}: {str(x.dtype)[6:]} {tuple(x.shape)}, strides {x.stride()}, offset {x.storage_offset()}"
            for i, x in enumerate(self.inputs)
        ]
        return "\n".join([*layouts, self.source])

    def function(self) -> Callable[..., tuple[Tensor, ...]]:
        namespace: dict = {"torch": torch, "F": torch.nn.functional}
        exec(self.source, namespace)
        return namespace["f"]

    def draw_input(self) -> Tensor:
        """A tensor of small multiples of 1/4, or of small integers, often with gaps, permuted or with an offset."""
        rank = self.random.choice((1, 2, 2, 2, 3, 3, 4))
        shape = [self.random.choice((1, 2, 3, 5, 8, 16, 17, 19, 33)) for _ in range(rank)]
        while math.prod(shape) > LARGEST:
            shape[shape.index(max(shape))] //= 2
        dtype = getattr(torch, self.random.choice(DTYPES))
        step, offset = self.random.choice((1, 1, 1, 2, 3)), self.random.choice((0, 0, 1, 3))
        whole = [*shape[:-1], offset + shape[-1] * step]
        generator = torch.Generator().manual_seed(self.random.randint(0, 1 << 30))
        base = torch.randint(0 if dtype == torch.uint8 else -12, 13, whole, generator=generator)
        base = (base / 4).to(dtype) if dtype.is_floating_point else base.to(dtype)
        order = self.random.sample(range(rank), rank) if self.random.random() < 0.4 else list(range(rank))
        return base[..., offset::step].permute(order)

    def pick(self, *kinds: str, exact: bool = False) -> Value:
        """A value of one of these kinds; the later ones are likelier.  Raises IndexError if there is none."""
        found = [v for v in self.values if (not kinds or v.kind in kinds) and (v.exact or not exact)]
        if not found:
            raise IndexError
        return self.random.choice(found[-4:] if self.random.random() < 0.7 else found)

    def add(self, kind: Callable[[Graph], tuple[str, tuple[Value, ...], bool]]) -> None:
        """Appends a line of a kind, unless it is not possible here."""
        try:
            expression, operands, exact = kind(self)
        except IndexError:
            return
        if self.differentiable and KINKED.search(expression) and not all(v.exact for v in operands):
            return
        # In place if there is a statement in place of an expression; its first operand holds the result.
        in_place = "; " in expression
        name = f"v{len(self.lines)}"
        line = expression.removeprefix("; ") if in_place else f"{name} = {expression}"
        before = {v.name: v.tensor for v in self.values}
        namespace = {"torch": torch, "F": torch.nn.functional, **before}
        storages = [v.tensor.untyped_storage() for v in operands] if in_place else []
        saved = [(storage, storage.clone()) for storage in storages]
        try:
            exec(line, namespace)
        except (RuntimeError, IndexError, ValueError, TypeError):
            result = None
        else:
            result = operands[0].tensor if in_place else namespace[name]
        if result is None or not bounded(result):
            for storage, bytes_before in saved:
                storage.copy_(bytes_before)
            return
        exact = exact and all(v.exact for v in operands) and is_exact(result)
        self.lines.append(line)
        self.used.update(v.name for v in operands[1 if in_place else 0 :])
        if in_place:  # so has everything that shares its memory
            for value in self.values:
                if not exact and shares_memory(value.tensor, result):
                    value.exact = False
        else:
            self.values.append(Value(name, result, exact))

    def dimension(self, value: Value) -> int:
        """A dimension of a value.  Raises IndexError if it has none."""
        if value.tensor.dim() == 0:
            raise IndexError
        return self.random.choice(range(-value.tensor.dim(), value.tensor.dim()))


def clone(tensor: Tensor, device: str | None = None) -> Tensor:
    """A copy with the strides and the offset, in memory of its own, which does not leave out what lies between.

    It is on the tensor's device unless another is given.
    """
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) + tensor.storage_offset()
    storage = torch.as_strided(tensor, (span,), (1,), 0).clone().to(device or tensor.device)
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def shares_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def bounded(tensor: Tensor) -> bool:
    """Whether a value is small, not empty, finite, and far from its type's limits."""
    if not 0 < tensor.numel() <= LARGEST:
        return False
    limit = {torch.float16: 500, torch.bfloat16: 500}.get(tensor.dtype, 1 << 14)
    narrow = tensor.dtype in (torch.int8, torch.uint8, torch.bool)
    return narrow or bool((tensor.double().abs() <= limit).all())


def is_exact(tensor: Tensor) -> bool:
    """Whether a float value has few enough bits that sums and products of the like are exact as well."""
    if not tensor.is_floating_point():
        return True
    value = tensor.double() * (4 if tensor.itemsize == 2 else 64)
    return bool((value == value.round()).all()) and bool(
        (tensor.abs() <= (8 if tensor.itemsize == 2 else 4096)).all()
    )


# --- Kinds of lines: each returns (expression, operands, whether exact operands give an exact result) --------------


def unary(g: Graph):
    if g.random.random() < 0.75:
        v = g.pick("float")
        form, exact = g.random.choice(
            [
                ("{}.sin()", False), ("{}.cos()", False), ("{}.tanh()", False), ("{}.sigmoid()", False),
                ("{}.clamp(-3, 3).exp()", False), ("{}.abs().sqrt()", False), ("({}.abs() + 1).rsqrt()", False),
                ("{}.abs().log1p()", False), ("torch.erf({})", False), ("F.gelu({})", False), ("F.silu({})", False),
                ("{}.relu()", True), ("-{}", True), ("{}.abs()", True), ("{}.square()", True), ("{} * 0.5", True),
                ("{} + 1", True), ("{}.clamp(-1.5, 2)", True), ("F.leaky_relu({}, 0.25)", True),
            ]
        )  # fmt: skip
        return form.format(v.name), (v,), exact
    v = g.pick("int", "bool")
    form = g.random.choice(
        ["{} + 1", "{} * 2", "{} * 0.5", "~{}", "{} ^ 3", "{} & 6", "{}.logical_not()", "{}.abs()"]
    )
    return form.format(v.name), (v,), True


def discontinuous(g: Graph):
    v = g.pick(exact=True)
    forms = [
        "{}.floor()",
        "{}.round()",
        "{}.sign()",
        "{} > 0",
        "{} != 1",
        "{} % 3",
        "{} // 2",
        "torch.fmod({}, 3)",
    ]
    forms += [
        "torch.div({}, 4, rounding_mode='trunc')",
        "{}.to(torch.int64)",
        "{}.to(torch.int32)",
        "{}.to(torch.bool)",
    ]
    return g.random.choice(forms).format(v.name), (v,), True


def cast(g: Graph):
    v = g.pick()
    dtypes = FLOATS if v.kind == "float" else FLOATS + INTEGERS
    return f"{v.name}.to(torch.{g.random.choice(dtypes)})", (v,), True


def binary(g: Graph):
    a, b = g.pick(), g.pick()
    form, exact = g.random.choice(
        [
            ("{} + {}", True), ("{} - {}", True), ("{} * {}", True), ("torch.maximum({}, {})", True),
            ("torch.minimum({}, {})", True), ("{} / ({}.abs() + 1)", False), ("torch.lerp({}, {}, 0.25)", True),
            ("torch.atan2({}, {}.abs() + 1)", False), ("torch.hypot({}, {})", False),
        ]
    )  # fmt: skip
    return form.format(a.name, b.name), (a, b), exact


def compare(g: Graph):
    a, b = g.pick(exact=True), g.pick(exact=True)
    return f"{a.name} {g.random.choice(['<', '<=', '==', '!=', '>'])} {b.name}", (a, b), True


def where(g: Graph):
    c, a, b = g.pick("bool"), g.pick(), g.pick()
    if g.random.random() < 0.5:
        return f"{a.name}.masked_fill({c.name}, 2)", (a, c), True
    return f"torch.where({c.name}, {a.name}, {b.name})", (c, a, b), True


def view(g: Graph):
    v = g.pick()
    d, e = g.dimension(v), g.dimension(v)
    n = v.tensor.size(d)
    start, step = g.random.randint(0, max(n // 2, 0)), g.random.choice((1, 1, 2, 3))
    order = g.random.sample(range(v.tensor.dim()), v.tensor.dim())
    form = g.random.choice(
        [
            f".transpose({d}, {e})", f".permute({order})", ".flatten()", ".reshape(-1)", f".unsqueeze({d})",
            f".squeeze({d})", f".narrow({d}, {start}, {n - start})", f".select({d}, {start})", f".movedim({d}, {e})",
            f".unflatten({d}, (-1, {step}))", ".contiguous()", ".t()", f".diagonal(0, {d}, {e})",
            f".expand(2, *{tuple(v.tensor.shape)})", f".chunk(2, {d})[-1]", f"[..., {start}::{step}]",
            f"[{start}::{step}]", f".flip({d})", f".roll({start}, {d})", ".clone()", f".unfold({d}, 2, {step})",
            f".view({', '.join(map(str, reversed(v.tensor.shape)))})", f".repeat_interleave(2, {d})",
        ]
    )  # fmt: skip
    return v.name + form, (v,), True


def reduction(g: Graph):
    v = g.pick()
    d, keep = g.dimension(v), g.random.random() < 0.5
    form, exact = g.random.choice(
        [
            (f".sum({d}, keepdim={keep})", True), (".sum()", True), (f".amax({d}, keepdim={keep})", True),
            (f".amin({d}, keepdim={keep})", True), (f".mean({d}, keepdim={keep})", False),
            (f".var({d}, keepdim={keep}, unbiased=False)", False), (f".softmax({d})", False), (f".cumsum({d})", True),
            (f".logsumexp({d}, keepdim={keep})", False), (f".norm(dim={d}, keepdim={keep})", False),
            (".amax()", True), (f".clamp(-1, 1).prod({d}, keepdim={keep})", False), (f".log_softmax({d})", False),
        ]
    )  # fmt: skip
    return v.name + form, (v,), exact


def counting_reduction(g: Graph):
    v = g.pick(exact=True)
    d, keep = g.dimension(v), g.random.random() < 0.5
    forms = ["argmax", "argmin", "count_nonzero"]
    if v.tensor.dtype != torch.uint8:  # of which eager returns uint8 and Inductor, on every device, bool
        forms += ["all", "any"]
    form = g.random.choice(forms)
    return f"{v.name}.{form}({d}{'' if form == 'count_nonzero' else f', keepdim={keep}'})", (v,), True


def indexing(g: Graph):
    v = g.pick()
    d = g.dimension(v)
    n = v.tensor.size(d)
    rows = [g.random.randint(-n, n - 1) for _ in range(g.random.randint(1, 6))]
    index = f"torch.tensor({rows}, device={v.name}.device)"
    positive = f"torch.tensor({[r % n for r in rows]}, device={v.name}.device)"
    counted = f"torch.arange({v.tensor.numel()}, device={v.name}.device).view({v.name}.shape)"
    halved = f"torch.arange({n}, device={v.name}.device) // 2"
    # Negated below: Inductor does an index_put in place even if the values are a view of what it writes to.
    moved = f"{v.name}.movedim({d}, 0)"
    form, exact = g.random.choice(
        [
            (f"{v.name}.index_select({d}, {positive})", True), (f"{v.name}.movedim({d}, 0)[{index}]", True),
            (f"{v.name}.gather({d}, {counted} % {n})", True), (f"{v.name}.take({counted})", True),
            (f"torch.zeros_like({v.name}).scatter_add({d}, {counted} % {n}, {v.name})", True),
            (f"torch.zeros_like({v.name}).index_add({d}, {halved}, {v.name})", True),
            (f"{moved}.index_put(({positive}[:1],), -{moved}[:1], accumulate=True)", True),
        ]
    )  # fmt: skip
    return form, (v,), exact


def product(g: Graph):
    a, b = g.pick("float"), g.pick("float")
    to = f".to({a.name}.dtype)"
    form = g.random.choice(
        [
            f"{a.name} @ {b.name}.mT{to}",
            f"{a.name} @ {b.name}{to}",
            f"{a.name}.mT @ {a.name}",
            f"F.linear({a.name}, {b.name}{to})",
        ]
    )
    return form, (a, b), True


def joining(g: Graph):
    a, b = g.pick(), g.pick()
    d = g.dimension(a)
    form = g.random.choice(
        ["torch.cat(({0}, {1}), {2})", "torch.cat(({0}, {0} + 1), {2})", "torch.stack(({0}, {1}), {2})"]
    )
    return form.format(a.name, b.name, d), (a, b), True


def factory(g: Graph):
    v = g.pick()
    n = v.tensor.shape[-1] if v.tensor.dim() else 1
    device = f"device={v.name}.device"
    form = g.random.choice(
        [f"torch.arange({n}, {device})", f"torch.full(({n},), 1.5, {device})", f"torch.ones_like({v.name})",
         f"torch.eye({n}, {device})", f"torch.tril(torch.ones({n}, {n}, {device}))"]
    )  # fmt: skip
    return form, (v,), True


def mutation(g: Graph):
    a = g.pick()
    b = g.pick(*([a.kind] if a.kind != "float" else ["float", "int", "bool"]))
    d = g.dimension(a) if a.tensor.dim() else 0
    if b is not a and shares_memory(a.tensor, b.tensor):
        raise IndexError  # what a statement reads must not be what it writes
    part = (
        ""
        if b is a
        else g.random.choice(["", "", f".narrow({d}, 0, 1)", f".transpose({d}, 0)", "[..., ::2]", "[1:]"])
    )
    form = g.random.choice(
        [
            ".add_({b})",
            ".mul_({b})",
            ".copy_({b})",
            ".fill_(1)",
            ".zero_()",
            ".clamp_(-1, 1)",
            ".add_(1)",
            ".mul_(2)",
            ".sub_({b})",
        ]
    )
    return f"; {a.name}{part}{form.format(b=b.name)}", (a, b), True


KINDS = (
    [unary] * 4 + [binary] * 4 + [view] * 5 + [reduction] * 3 + [indexing] * 2 + [mutation] * 3
    + [discontinuous, cast, compare, where, counting_reduction, product, joining, factory]
)  # fmt: skip
