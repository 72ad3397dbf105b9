"""Random operators: pure functions of the generator's seed and offset, with the right values and errors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

DEV = torch.device("simdev", 0)
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]

Draw = Callable[..., torch.Tensor]


def full(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype, device=DEV)


def ramp(count: int) -> torch.Tensor:
    return torch.linspace(0.1, 0.9, count, device=DEV)


# Every way to draw: (name, function of a generator or None). All take a generator except those listed below.
DRAWS: dict[str, Draw] = {
    "uniform_": lambda g: torch.empty(999, device=DEV).uniform_(-2, 3, generator=g),
    "normal_": lambda g: torch.empty(999, device=DEV).normal_(1, 2, generator=g),
    "log_normal_": lambda g: torch.empty(999, device=DEV).log_normal_(0, 0.5, generator=g),
    "exponential_": lambda g: torch.empty(999, device=DEV).exponential_(2, generator=g),
    "cauchy_": lambda g: torch.empty(999, device=DEV).cauchy_(1, 2, generator=g),
    "geometric_": lambda g: torch.empty(999, device=DEV).geometric_(0.3, generator=g),
    "random_": lambda g: torch.empty(999, device=DEV, dtype=torch.int64).random_(generator=g),
    "random_.to": lambda g: torch.empty(999, device=DEV, dtype=torch.int32).random_(7, generator=g),
    "random_.from": lambda g: torch.empty(999, device=DEV).random_(-5, 7, generator=g),
    "bernoulli_": lambda g: torch.empty(999, device=DEV).bernoulli_(0.3, generator=g),
    "bernoulli_.Tensor": lambda g: torch.empty(999, device=DEV).bernoulli_(ramp(999), generator=g),
    "bernoulli": lambda g: torch.bernoulli(ramp(999), generator=g),
    "bernoulli.p": lambda g: torch.bernoulli(ramp(999), 0.4, generator=g),
    "bernoulli.out": lambda g: torch.bernoulli(ramp(999), out=torch.empty(999, device=DEV), generator=g),
    "normal.TT": lambda g: torch.normal(ramp(999), ramp(999), generator=g),
    "normal.Tf": lambda g: torch.normal(ramp(999), 2.0, generator=g),
    "normal.fT": lambda g: torch.normal(1.0, ramp(999), generator=g),
    "normal.ff": lambda g: torch.normal(1.0, 2.0, (999,), device=DEV, generator=g),
    "normal.out": lambda g: torch.normal(1.0, 2.0, (999,), out=torch.empty(0, device=DEV), generator=g),
    "normal.TT_out": lambda g: torch.normal(ramp(9), ramp(9), out=torch.empty(0, device=DEV), generator=g),
    "rand": lambda g: torch.rand(999, device=DEV, generator=g),
    "rand.out": lambda g: torch.rand(999, out=torch.empty(0, device=DEV), generator=g),
    "randn": lambda g: torch.randn(9, 111, device=DEV, generator=g),
    "randint": lambda g: torch.randint(3, 99, (999,), device=DEV, generator=g),
    "randperm": lambda g: torch.randperm(999, device=DEV, generator=g),
    "multinomial": lambda g: torch.multinomial(ramp(99), 50, generator=g),
    "multinomial replacing": lambda g: torch.multinomial(ramp(99), 500, replacement=True, generator=g),
    "poisson": lambda g: torch.poisson(10 * ramp(999), generator=g),
    "binomial": lambda g: torch.binomial(full(9, 999), ramp(999), generator=g),
    "standard_gamma": lambda g: torch._standard_gamma(ramp(999), generator=g),
    "sample_dirichlet": lambda g: torch._sample_dirichlet(ramp(999).view(3, 333), generator=g),
    "rrelu_with_noise": lambda g: torch.ops.aten.rrelu_with_noise(
        -ramp(999), torch.empty(999, device=DEV), 0.1, 0.9, True, g
    ),
    "fused_dropout": lambda g: torch._fused_dropout(full(1, 999), 0.5, generator=g)[0],
}
WITHOUT_GENERATOR: dict[str, Draw] = {
    "rand_like": lambda: torch.rand_like(ramp(999)),
    "randn_like": lambda: torch.randn_like(ramp(999)),
    "randint_like": lambda: torch.randint_like(ramp(999), 50),
    "native_dropout": lambda: torch.native_dropout(full(1, 999), 0.5, True)[1],
    "dropout": lambda: F.dropout(full(1, 999), 0.3),
    "dropout in place": lambda: F.dropout(full(1, 999), 0.3, inplace=True),
    "dropout1d": lambda: F.dropout1d(full(1, 9, 111, 2), 0.3),
    "dropout2d": lambda: F.dropout2d(full(1, 9, 111, 2, 2), 0.3),
    "dropout3d": lambda: F.dropout3d(full(1, 9, 111, 2, 2, 2), 0.3),
    "alpha_dropout": lambda: F.alpha_dropout(full(1, 999), 0.3, training=True),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(full(1, 9, 111, 2), 0.3, training=True),
    "rrelu": lambda: F.rrelu(-ramp(999), training=True),
    "gumbel_softmax": lambda: F.gumbel_softmax(ramp(999).view(9, 111)),
    "gamma": lambda: torch.distributions.Gamma(ramp(9), ramp(9)).sample((99,)),
    "sdpa with dropout": lambda: F.scaled_dot_product_attention(*[full(1, 2, 3, 9, 8)] * 3, dropout_p=0.5),
    "fractional_max_pool2d": lambda: F.fractional_max_pool2d(
        torch.arange(400.0, device=DEV).view(1, 1, 20, 20), 2, output_ratio=(0.3, 0.3)
    ),
}


# --- A pure function of seed and offset ---------------------------------------------------------------------


def generator(seed: int = 7) -> torch.Generator:
    return torch.Generator(DEV).manual_seed(seed)


@pytest.mark.parametrize("name", DRAWS)
def test_draw_is_a_function_of_seed_and_offset(name: str) -> None:
    draw = DRAWS[name]
    g = generator()
    default_state = torch.simdev.get_rng_state()
    first, second = draw(g).cpu(), draw(g).cpu()
    assert not torch.equal(first, second)
    offset = g.get_offset()
    assert offset > 0
    assert offset % 4 == 0
    # An own generator leaves the default one alone; the same state gives the same values, in both ways.
    assert torch.equal(torch.simdev.get_rng_state(), default_state)
    g = generator()
    state = g.get_state()
    assert torch.equal(draw(g).cpu(), first)
    g.set_state(state)
    assert torch.equal(draw(g).cpu(), first)
    assert torch.equal(draw(g).cpu(), second)
    torch.simdev.manual_seed(7)
    assert torch.equal(draw(None).cpu(), first)
    assert not torch.equal(draw(generator(8)).cpu(), first)


@pytest.mark.parametrize("name", WITHOUT_GENERATOR)
def test_draw_from_the_default_generator(name: str) -> None:
    draw = WITHOUT_GENERATOR[name]
    torch.manual_seed(3)
    first, second = draw().cpu(), draw().cpu()
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(draw().cpu(), first)
    assert torch.equal(draw().cpu(), second)


def test_host_and_device_draw_independently() -> None:
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    for draw in WITHOUT_GENERATOR.values():
        draw()
    for draw in DRAWS.values():
        draw(None)
    assert torch.equal(torch.rand(4), expected)


def test_every_random_operator_is_covered() -> None:
    """Every operator that has a CPU kernel and takes a generator is in the tables and has a kernel here."""
    tested = {
        "uniform_", "normal_", "log_normal_", "exponential_", "cauchy_", "geometric_", "random_",
        "random_.to", "random_.from", "bernoulli_.float", "bernoulli_.Tensor", "bernoulli.out",
        "normal.Tensor_Tensor", "normal.Tensor_float",
        "normal.float_Tensor", "normal.Tensor_Tensor_out", "normal.Tensor_float_out",
        "normal.float_Tensor_out", "randperm.generator_out", "multinomial", "multinomial.out", "poisson",
        "binomial", "_standard_gamma", "_sample_dirichlet", "rrelu_with_noise", "rrelu_with_noise.out",
        "rrelu_with_noise_", "native_dropout",
    }  # fmt: skip
    dispatched = set(torch._C._dispatch_get_all_op_names())
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        if not schema.name.startswith("aten::") or not any(
            "Generator" in str(a.type) for a in schema.arguments
        ):
            continue
        if name not in dispatched:
            continue  # TorchScript's own
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
            assert name.removeprefix("aten::") in tested
            assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1")


@pytest.mark.parametrize("threads", ["1", "4"])
def test_values_do_not_depend_on_threads(run_python, threads: str) -> None:
    code = (
        "import torch; torch.manual_seed(5); d = 'simdev'\n"
        "draws = [torch.randn(3_000_001, device=d), torch.rand(70_001, device=d)]\n"
        "draws += [torch.randperm(99_999, device=d)]\n"
        "print([t.double().cumsum(0)[-1].item() for t in draws], [t[-3:].tolist() for t in draws])"
    )
    values = run_python(code, SIMDEV_NUM_THREADS=threads).stdout
    assert values == run_python(code, SIMDEV_NUM_THREADS="2").stdout


def test_values_do_not_depend_on_other_streams() -> None:
    torch.manual_seed(1)
    expected = [torch.randn(50_000, device=DEV).cpu() for _ in range(4)]
    torch.manual_seed(1)
    streams = [torch.Stream(DEV) for _ in range(4)]
    values = []
    for stream in streams:
        with stream:
            torch.simdev._sleep(1)
            values.append(torch.randn(50_000, device=DEV))
    torch.accelerator.synchronize()
    assert all(torch.equal(a.cpu(), b) for a, b in zip(values, expected, strict=True))


def test_parts_of_a_sequence_join() -> None:
    """Element i uses number offset + i: what DTensor's offset tracker counts on."""
    whole = torch.randn(4096, device=DEV, generator=generator())
    g = generator()
    parts = [torch.randn(n, device=DEV, generator=g) for n in (1024, 8, 3064)]
    assert torch.equal(torch.cat(parts), whole)
    assert g.get_offset() == 4096


def test_small_and_large_seeds_differ() -> None:
    draws = [torch.poisson(full(50, 99), generator=generator(s)) for s in (1, 1 + 2**32, 2**63, -1)]
    for i, a in enumerate(draws):
        assert not any(torch.equal(a, b) for b in draws[:i])


def test_fork_rng_and_checkpoint() -> None:
    torch.manual_seed(11)
    with torch.random.fork_rng(devices=[0], device_type="simdev"):
        inside = F.dropout(full(1, 500), 0.5)
    assert torch.equal(F.dropout(full(1, 500), 0.5), inside)

    masks = []

    def block(x: torch.Tensor) -> torch.Tensor:
        masks.append(F.dropout(torch.ones_like(x), 0.5).detach())
        return F.dropout(x, 0.5) * masks[-1]

    x = full(1, 500).requires_grad_()
    torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum().backward()
    assert torch.equal(masks[0], masks[1])


# --- Distributions ------------------------------------------------------------------------------------------


def kolmogorov_smirnov(values: torch.Tensor, cdf: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """The statistic times sqrt(n): above 2.2 with a probability of 1e-4 if ``cdf`` is right."""
    values = values.cpu().double().flatten().sort().values
    n = len(values)
    uniform = cdf(values)
    upper = torch.arange(1, n + 1).double() / n - uniform
    lower = uniform - torch.arange(n).double() / n
    return max(upper.max().item(), lower.max().item()) * math.sqrt(n)


N = 200_001
CONTINUOUS = {
    "uniform": (lambda t, g: t.uniform_(-3, 5, generator=g), lambda x: (x + 3) / 8),
    "unit": (lambda t, g: t.uniform_(generator=g), lambda x: x),
    "normal": (
        lambda t, g: t.normal_(2, 3, generator=g), lambda x: torch.special.ndtr((x - 2) / 3),
    ),
    "log normal": (
        lambda t, g: t.log_normal_(0.5, 0.25, generator=g),
        lambda x: torch.special.ndtr((x.log() - 0.5) / 0.25),
    ),
    "exponential": (lambda t, g: t.exponential_(2, generator=g), lambda x: 1 - torch.exp(-2 * x)),
    "cauchy": (
        lambda t, g: t.cauchy_(1, 2, generator=g), lambda x: torch.atan((x - 1) / 2) / math.pi + 0.5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distribution(name: str, dtype: torch.dtype) -> None:
    draw, cdf = CONTINUOUS[name]
    values = draw(torch.empty(N, dtype=dtype, device=DEV), generator(1234))
    assert kolmogorov_smirnov(values, cdf) < 2.2
    # Neighbours are independent, in pairs (Box-Muller) and across blocks of Philox.
    ranks = cdf(values.cpu().double()) - 0.5
    for lag in (1, 2, 3, 4, 256):
        assert abs((ranks[lag:] * ranks[:-lag]).mean().item()) * 12 * math.sqrt(N) < 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_uniform_and_normal(dtype: torch.dtype) -> None:
    uniform = torch.rand(N, dtype=dtype, device=DEV, generator=generator()).float()
    assert uniform.min().item() >= 0
    assert uniform.max().item() < 1
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.005)
    scaled = torch.empty(N, dtype=dtype, device=DEV).uniform_(1, 4, generator=generator()).float()
    assert scaled.min().item() >= 1
    assert scaled.max().item() < 4
    normal = torch.randn(N, dtype=dtype, device=DEV, generator=generator()).float()
    assert normal.mean().item() == pytest.approx(0, abs=0.01)
    assert normal.std().item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_never_reaches_its_upper_bound(dtype: torch.dtype) -> None:
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (0.0, 3.0), (1000.0, 1004.0)):
        values = torch.empty(1_000_000, dtype=dtype, device=DEV).uniform_(low, high, generator=generator())
        assert values.min().item() >= low
        assert values.max().item() < high


def test_tails() -> None:
    normal = torch.randn(20_000_000, device=DEV, generator=generator())
    assert normal.isfinite().all().item()
    assert normal.abs().max().item() > 4.9
    fourth = (normal.double() ** 4).mean().item()
    assert fourth == pytest.approx(3, abs=0.02)
    exponential = torch.empty(10_000_000, device=DEV).exponential_(generator=generator())
    assert exponential.min().item() > 0
    assert exponential.max().item() > 14


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_bernoulli(dtype: torch.dtype, p: float) -> None:
    for values in (
        torch.empty(N, dtype=dtype, device=DEV).bernoulli_(p, generator=generator()),
        torch.empty(N, dtype=dtype, device=DEV).bernoulli_(full(p, N), generator=generator()),
        torch.empty(3, 66667, dtype=dtype, device=DEV).bernoulli_(
            full(p, 66667, dtype=torch.float64), generator=generator()
        ),
    ):
        host = values.cpu()
        assert ((host == 0) | (host == 1)).all()
        mean = host.double().mean().item()
        assert mean == p if p in (0, 1) else abs(mean - p) < 0.005


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_random_with_bounds(dtype: torch.dtype) -> None:
    low, high = (3, 17) if dtype == torch.uint8 else (-8, 9)
    counts = torch.empty(N, dtype=dtype, device=DEV).random_(low, high, generator=generator()).cpu().long()
    counts = torch.bincount(counts - low)
    assert len(counts) == high - low
    expected = N / (high - low)
    chi2 = ((counts - expected) ** 2 / expected).sum().item()
    assert chi2 < (high - low) + 6 * math.sqrt(2 * (high - low))


@pytest.mark.parametrize(
    ("dtype", "top"),
    [
        (torch.uint8, 2**8 - 1), (torch.int8, 2**7 - 1), (torch.int16, 2**15 - 1), (torch.int32, 2**31 - 1),
        (torch.int64, 2**63 - 1), (torch.float16, 2**11), (torch.bfloat16, 2**8), (torch.float32, 2**24),
        (torch.float64, 2**53), (torch.bool, 1),
    ],
)  # fmt: skip
def test_random_without_bounds(dtype: torch.dtype, top: int) -> None:
    values = torch.empty(N, dtype=dtype, device=DEV).random_(generator=generator()).cpu().double()
    assert values.min().item() >= 0
    assert values.max().item() <= top
    assert values.max().item() >= 0.99 * top
    assert values.mean().item() == pytest.approx(top / 2, rel=0.02)


def test_random_over_all_64_bits() -> None:
    values = (
        torch.empty(N, dtype=torch.int64, device=DEV).random_(-(2**63), None, generator=generator()).cpu()
    )
    assert (values < 0).float().mean().item() == pytest.approx(0.5, abs=0.01)
    for bit in range(64):
        assert ((values >> bit) & 1).float().mean().item() == pytest.approx(0.5, abs=0.01)
    wide = torch.randint(-(2**62), 2**62, (N,), device=DEV, generator=generator()).cpu()
    assert wide.min().item() < -(2**61)
    assert wide.max().item() > 2**61


def test_geometric() -> None:
    for dtype in (torch.float32, torch.int64):
        values = (
            torch.empty(N, dtype=dtype, device=DEV).geometric_(0.25, generator=generator()).cpu().double()
        )
        assert values.min().item() == 1
        assert values.mean().item() == pytest.approx(4, abs=0.05)
        assert values.var().item() == pytest.approx(12, abs=0.5)


def test_distributions_by_atens_kernels() -> None:
    assert torch.poisson(full(6, N), generator=generator()).var().item() == pytest.approx(6, abs=0.15)
    binomial = torch.binomial(full(10, N), full(0.3, N), generator=generator())
    assert binomial.mean().item() == pytest.approx(3, abs=0.03)
    gamma = torch._standard_gamma(full(2.5, N), generator=generator())
    assert gamma.var().item() == pytest.approx(2.5, abs=0.1)
    dirichlet = torch._sample_dirichlet(full(1, 5000, 4), generator=generator())
    torch.testing.assert_close(dirichlet.sum(1).cpu(), torch.ones(5000))
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0], device=DEV)
    counts = torch.bincount(torch.multinomial(weights, N, replacement=True, generator=generator()).cpu())
    torch.testing.assert_close(counts / N, weights.cpu() / 8, atol=0.01, rtol=0)
    for n in (0, 1, 1000):
        permutation = torch.randperm(n, device=DEV, generator=generator())
        assert torch.equal(permutation.sort().values.cpu(), torch.arange(n))


def test_complex_normal() -> None:
    values = torch.randn(N, dtype=torch.complex64, device=DEV, generator=generator()).cpu()
    assert values.real.var().item() == pytest.approx(0.5, abs=0.01)
    assert values.abs().square().mean().item() == pytest.approx(1, abs=0.02)
    assert torch.rand(9, dtype=torch.complex128, device=DEV).imag.max().item() < 1


# --- Layouts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["uniform_", "normal_", "exponential_", "random_", "bernoulli_", "cauchy_"]
)
def test_only_the_view_is_written(method: str) -> None:
    base = full(-7, 40, 50)
    view = base[3:33, 1::2]
    getattr(view, method)()
    host = base.cpu()
    assert (host[3:33, 1::2] != -7).all()
    host[3:33, 1::2] = -7
    assert (host == -7).all()
    transposed = full(-7, 40, 50).t()
    assert (getattr(transposed, method)() != -7).all().item()


def test_a_view_gets_the_values_of_a_dense_tensor() -> None:
    dense = torch.empty(30, 25, device=DEV).normal_(generator=generator())
    view = torch.empty(40, 50, device=DEV)[3:33, 1::2]
    assert torch.equal(view.normal_(generator=generator()), dense)


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_empty_and_0d(shape: tuple[int, ...]) -> None:
    g = generator()
    for method in ("uniform_", "normal_", "exponential_", "random_", "bernoulli_", "log_normal_", "cauchy_"):
        assert getattr(torch.empty(shape, device=DEV), method)(generator=g).shape == shape
    assert F.dropout(torch.ones(shape, device=DEV), 0.5).shape == shape
    assert g.get_offset() == (0 if 0 in shape else 4 * 7)


def test_overlapping_output_is_refused() -> None:
    expanded = torch.empty(1, device=DEV).expand(4)
    for method in ("uniform_", "normal_", "bernoulli_", "random_"):
        with pytest.raises(RuntimeError, match="single memory location"):
            getattr(expanded, method)()


# --- Errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWS)
def test_host_generator_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="Expected a 'simdev' device type for generator but found 'cpu'"):
        DRAWS[name](torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a generator of simdev:0 but found one of simdev:1"):
        DRAWS[name](torch.Generator("simdev:1"))


def test_generator_of_the_device_is_refused_for_host_tensors() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'simdev'"):
        torch.randn(3, generator=torch.Generator("simdev"))


ERRORS: list[tuple[Callable[[str], object], str]] = [
    (lambda d: torch.empty(3, device=d).normal_(0, -1), "normal expects std >= 0.0, but found std -1"),
    (lambda d: torch.normal(torch.zeros(3, device=d), -1.0), "normal expects std >= 0.0"),
    (
        lambda d: torch.normal(0.0, torch.tensor([1.0, -1.0], device=d)),
        "normal expects all elements of std >= 0.0",
    ),
    (lambda d: torch.empty(3, device=d).uniform_(2, 1), r"uniform_ expects to return a \[from, to\) range"),
    (lambda d: torch.empty(3, dtype=torch.half, device=d).uniform_(0, 1e6), "to is out of bounds for"),
    (lambda d: torch.empty(3, device=d).bernoulli_(1.5), r"bernoulli_ expects p to be in \[0, 1\]"),
    (lambda d: torch.empty(3, device=d).random_(5, 5), "random_ expects 'from' to be less than 'to'"),
    (lambda d: torch.empty(3, dtype=torch.uint8, device=d).random_(-1, 5), "from is out of bounds for"),
    (lambda d: torch.randint(0, 300, (3,), dtype=torch.int8, device=d), "to - 1 is out of bounds for"),
    (lambda d: torch.empty(3, device=d).exponential_(0), "exponential_ expects lambda > 0.0"),
    (
        lambda d: torch.empty(3, dtype=torch.long, device=d).exponential_(),
        "Exponential distribution is a continuous probability distribution",
    ),
    (lambda d: torch.empty(3, device=d).log_normal_(0, 0), "log_normal_ expects std > 0.0"),
    (lambda d: torch.empty(3, device=d).cauchy_(0, 0), "cauchy_ expects sigma > 0.0"),
    (lambda d: torch.empty(3, device=d).geometric_(1.0), r"geometric_ expects p to be in \(0, 1\)"),
    (lambda d: torch.empty(3, dtype=torch.long, device=d).uniform_(), "not implemented for 'Long'"),
    (lambda d: torch.bernoulli(torch.ones(3, dtype=torch.long, device=d)), "not implemented for 'Long'"),
    (lambda d: torch.randperm(-1, device=d), "negative dimension -1"),
    (lambda d: torch.multinomial(torch.ones(3, device=d), 5), "cannot sample n_sample > prob_dist.size"),
    (
        lambda d: torch.nn.functional.dropout(torch.ones(3, device=d), 1.5),
        "dropout probability has to be between",
    ),
]


@pytest.mark.parametrize("index", range(len(ERRORS)))
def test_bad_arguments_give_the_cpus_error_at_once(index: int) -> None:
    call, message = ERRORS[index]
    with pytest.raises((RuntimeError, ValueError), match=message) as on_cpu:
        call("cpu")
    with pytest.raises(on_cpu.type, match=message):
        call("simdev")


def test_probability_out_of_range_surfaces_at_synchronisation() -> None:
    with pytest.raises(RuntimeError, match=r"bernoulli_.*p_in >= 0 && p_in <= 1"):
        torch.bernoulli(torch.tensor([0.5, 1.5], device=DEV))
        torch.accelerator.synchronize()
    assert torch.rand(3, device=DEV).cpu().max() < 1


def test_imprecise_bounds_warn() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.empty(3, device=DEV).random_(0, 2**25)
    assert any("out of bounds" in str(w.message) for w in caught)


# --- Dropout ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_native_dropout(dtype: torch.dtype, p: float) -> None:
    x = torch.randn(N, dtype=dtype, device=DEV)
    output, mask = torch.native_dropout(x, p, True)
    assert mask.dtype == torch.bool
    scale = 0 if p == 1 else 1 / (1 - p)
    torch.testing.assert_close(output.cpu(), x.cpu() * mask.cpu() * scale)
    assert mask.float().mean().item() == pytest.approx(1 - p, abs=0.005)
    output, mask = torch.native_dropout(x, p, False)
    assert torch.equal(output, x)
    assert mask.all().item()


def test_dropout_gradient_uses_the_mask() -> None:
    x = torch.randn(300, 50, device=DEV, requires_grad=True)
    y = F.dropout(x, 0.25)
    y.backward(torch.full_like(y, 3))
    kept = (y != 0).cpu()
    torch.testing.assert_close(x.grad.cpu(), kept * 4.0)
    torch.testing.assert_close(y.detach().cpu(), x.detach().cpu() * kept / 0.75)


def test_dropout_of_any_layout_and_of_complex_numbers() -> None:
    for x in (
        torch.ones(30, 20, device=DEV).t(),
        torch.ones(30, 20, device=DEV)[:, ::3],
        torch.ones(2, 3, 4, 5, device=DEV).to(memory_format=torch.channels_last),
        torch.ones(1, 20, device=DEV).expand(30, 20),
        torch.ones(600, dtype=torch.cfloat, device=DEV),
    ):
        y = F.dropout(x, 0.5).cpu()
        assert set(y.real.unique().tolist()) == {0.0, 2.0}


def test_dropout_modules_in_training_and_evaluation() -> None:
    x = torch.ones(20, 30, 4, device=DEV)
    for module in (torch.nn.Dropout(0.5), torch.nn.Dropout1d(0.5), torch.nn.AlphaDropout(0.5),
                   torch.nn.FeatureAlphaDropout(0.5), torch.nn.RReLU()):  # fmt: skip
        if not isinstance(module, torch.nn.RReLU):
            assert not torch.equal(module(x), x)
        assert torch.equal(module.eval()(x), x)
    channels = torch.nn.Dropout1d(0.5)(x).cpu()
    assert ((channels == 0).all(-1) | (channels == 2).all(-1)).all()
    assert torch.equal(F.dropout(x, 1.0), torch.zeros_like(x))
    assert torch.equal(F.dropout(x, 0.0), x)
