"""The operator layer: copies, views, out=, in-place, launched and native kernels, fallback, bad input."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.compare import check_same, recorded_warnings, to_device

DEV = "simdev"
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
]


def make(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.testing.make_tensor(shape, dtype=dtype, device="cpu", low=0, high=5)


# --- Copies -----------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 1),
    "offset": lambda t: t[1:, 2:],
    "stepped": lambda t: t[::2, ::3],
    "expanded": lambda t: t[:, :1].expand(-1, 5),
    "permuted storage": lambda t: t.t().contiguous().t(),
}


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("direction", ["h2d", "d2h", "d2d", "peer"])
@pytest.mark.parametrize(("src_dtype", "dst_dtype"), list(itertools.product(DTYPES[:8], DTYPES[:8])))
def test_copy_between_layouts_and_dtypes(
    direction: str, src_dtype: torch.dtype, dst_dtype: torch.dtype
) -> None:
    src_device, dst_device = {
        "h2d": ("cpu", DEV),
        "d2h": (DEV, "cpu"),
        "d2d": (DEV, DEV),
        "peer": (DEV + ":0", DEV + ":1"),
    }[direction]
    for src_layout, dst_layout in itertools.product(
        LAYOUTS, ["contiguous", "transposed", "offset", "stepped"]
    ):
        base = make((7, 9), src_dtype)
        src = LAYOUTS[src_layout](base)
        wide = torch.zeros(2 * src.shape[0] + 2, 3 * src.shape[1] + 2, dtype=dst_dtype)
        dst = LAYOUTS[dst_layout](wide)[: src.shape[0], : src.shape[1]]
        if dst.shape != src.shape:
            continue
        device_wide = to_device(wide, dst_device) if dst_device != "cpu" else wide.clone()
        device_dst = device_wide.as_strided(dst.size(), dst.stride(), dst.storage_offset())
        device_src = LAYOUTS[src_layout](base.to(src_device))
        dst.copy_(src)
        device_dst.copy_(device_src)
        torch.testing.assert_close(
            device_wide.cpu(), wide, rtol=0, atol=0, msg=f"{src_layout} to {dst_layout}"
        )


@given(
    shape=st.lists(st.integers(0, 6), min_size=0, max_size=4),
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
)
@settings(deadline=None, max_examples=150)
def test_round_trip_of_any_view(shape: list[int], data: st.DataObject, dtype: torch.dtype) -> None:
    tensor = make(tuple(shape), dtype)
    if tensor.dim() >= 2:
        tensor = tensor.permute(data.draw(st.permutations(range(tensor.dim()))))
    for dim in range(tensor.dim()):
        step = data.draw(st.integers(1, 3))
        start = data.draw(st.integers(0, 2))
        tensor = tensor[(slice(None),) * dim + (slice(start, None, step),)]
    moved = to_device(tensor)
    assert moved.stride() == tensor.stride() and moved.storage_offset() == tensor.storage_offset()
    assert torch.equal(moved.cpu(), tensor)
    assert torch.equal(tensor.to(DEV).clone().cpu(), tensor)


def test_conjugate_and_negative_bits_survive_copies() -> None:
    z = torch.randn(4, 3, dtype=torch.complex64)
    d = z.to(DEV)
    assert d.conj().is_conj() and torch.equal(d.conj().cpu().resolve_conj(), z.conj().resolve_conj())
    assert torch.equal(d.conj().imag.cpu(), z.conj().imag)  # a view with the negative bit
    target = torch.empty(4, 3, dtype=torch.complex64, device=DEV)
    target.conj().copy_(d)
    assert torch.equal(target.cpu(), z.conj().resolve_conj())


def test_pageable_source_may_change_after_a_non_blocking_copy() -> None:
    for n in (16, 1 << 20):
        src = torch.ones(n)
        dst = torch.empty(n, device=DEV)
        torch.simdev._sleep(20)
        dst.copy_(src, non_blocking=True)
        src.fill_(-1)
        assert dst.cpu().eq(1).all()


def test_pinned_copies_are_asynchronous() -> None:
    src = torch.ones(1 << 16).pin_memory()
    dst = torch.empty(1 << 16, device=DEV)
    torch.simdev._sleep(1000)
    dst.copy_(src, non_blocking=True)
    # Not empty(pin_memory=True), which in a PyTorch that has CUDA is CUDA's pinned memory.
    back = torch.empty(1 << 16).pin_memory()
    back.copy_(dst, non_blocking=True)
    assert not torch.simdev.current_stream().query()
    torch.simdev.synchronize()
    assert back.eq(1).all()


def test_copy_between_devices_waits_for_both_streams() -> None:
    a = torch.zeros(1 << 18, device=DEV + ":0")
    torch.simdev._sleep(30)
    a.fill_(3)
    b = a.to(DEV + ":1")  # must see the fill
    a.fill_(4)  # must not be seen
    assert b.device.index == 1 and b.cpu().eq(3).all()


# --- Views, set_, resize_ ---------------------------------------------------------------


def test_views_share_storage_and_write_through() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    t = base.clone().to(DEV)
    makers: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x.as_strided((2, 2), (6, 1), 3),
        lambda x: x.unfold(1, 2, 2),
        lambda x: x.diagonal(),
        lambda x: x.T,
        lambda x: x[1::2, 2:],
        lambda x: x.view(2, 12),
        lambda x: x.expand(2, 4, 6)[0],
        lambda x: x.unsqueeze(0)[0],
        lambda x: x.view(torch.int32).view(torch.float32),
        lambda x: x.narrow(0, 1, 2),
        lambda x: x.split(2)[1],
        lambda x: x.unbind(1)[3],
        lambda x: x.reshape(24)[5:],
        lambda x: x.detach(),
        lambda x: x.swapaxes(0, 1),
        lambda x: torch.view_as_complex(x.view(4, 3, 2)).real,
    ]
    for maker in makers:
        view, reference = maker(t), maker(base)
        assert view.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()
        assert view.stride() == reference.stride() and view.storage_offset() == reference.storage_offset()
        view.add_(1)
        reference.add_(1)
        assert torch.equal(t.cpu(), base)


def test_set_and_resize() -> None:
    t = torch.arange(6.0, device=DEV)
    t.resize_(2, 8)  # grows, keeps the first elements
    assert t.shape == (2, 8) and t.flatten()[:6].tolist() == [0, 1, 2, 3, 4, 5]
    t.resize_(3)
    assert t.untyped_storage().nbytes() == 64
    u = torch.empty(0, device=DEV).set_(t.untyped_storage(), 1, (2, 2), (2, 1))
    assert u.tolist() == [[1, 2], [3, 4]]
    v = torch.empty(0, device=DEV).set_(u)
    assert v.is_set_to(u)
    v.set_()
    assert v.numel() == 0 and u.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(RuntimeError, match=r"[Nn]egative"):
        t.resize_(-1)
    with pytest.raises(RuntimeError, match="device"):
        torch.empty(0, device=DEV).set_(torch.ones(2).untyped_storage(), 0, (2,), (1,))


# --- Operators --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("op", [torch.add, torch.sub, torch.mul, torch.true_divide])
def test_native_binary_operators(op: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    a, b = make((33, 17), dtype), make((33, 17), dtype) + 1
    cases = [
        (a, b),
        (a.t(), b.t()),
        (a[::2], b[::2]),
        (a, b[:1]),
        (a, 3),
        (a, 2.5),
        (a[:0], b[:0]),
        (a[0, 0], b[0, 0]),
        (a, torch.tensor(2.0)),
        (a, b.to(torch.float64)),
        (a.t().contiguous().t(), b),
    ]
    for x, y in cases:
        dx, dy = to_device(x), to_device(y) if isinstance(y, torch.Tensor) and y.dim() else y
        check_same(op(dx, dy), op(x, y))
    check_same(a.to(DEV).add(b.to(DEV), alpha=2), a.add(b, alpha=2))


def test_native_kernels_in_place_and_in_parallel() -> None:
    a = torch.randn(1 << 20)
    d = a.to(DEV)
    d.add_(d).mul_(0.5).sub_(1).div_(d.abs() + 1).add_(d, alpha=0.25)
    a.add_(a).mul_(0.5).sub_(1).div_(a.abs() + 1).add_(a, alpha=0.25)
    check_same(d, a)
    x = torch.tensor([-1.0, 0.0, 2.0, float("nan"), -0.0])
    check_same(x.to(DEV).relu(), x.relu())
    check_same(x.to(DEV).relu_(), x.clone().relu_())


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn])
def test_fill_and_zero(dtype: torch.dtype) -> None:
    t = torch.empty(5, 7, dtype=dtype, device=DEV)
    t.fill_(1)
    assert t.cpu().to(torch.float32).real.eq(1).all()
    t[1:3, ::2].zero_()
    expected = torch.ones(5, 7)
    expected[1:3, ::2] = 0
    assert torch.equal(t.cpu().to(torch.float32), expected)
    t.fill_(torch.tensor(1, device=DEV).to(dtype) if dtype is not torch.float8_e4m3fn else 1)
    assert t.cpu().to(torch.float32).eq(1).all()


WRITERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "native add_": lambda t: t.add_(1),
    "native mul_ by itself": lambda t: t.mul_(t),
    "native relu_": lambda t: t.relu_(),
    "native fill_": lambda t: t.fill_(3),
    "native uniform_": lambda t: t.uniform_(),
    "memset": lambda t: t.zero_(),
    "copy": lambda t: t.copy_(torch.ones_like(t)),
    "launched sin_": lambda t: t.sin_(),
    "launched out=": lambda t: torch.cos(torch.ones_like(t), out=t),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_writing_ends_copy_on_write_sharing(writer: str) -> None:
    original = torch.randn(64, device=DEV)
    expected = original.cpu()
    clone = torch._lazy_clone(original)
    WRITERS[writer](clone)
    assert torch.equal(original.cpu(), expected)
    assert not torch.equal(clone.cpu(), expected)


def test_out_variants_resize_warn_and_write_through_strides() -> None:
    base = torch.full((4, 4), 9.0, device=DEV)
    torch.mul(torch.ones(4, device=DEV), 2, out=base[:, 1])
    torch.add(torch.ones(2, 2, device=DEV), 1, out=base[2:, 2:].t())
    expected = torch.full((4, 4), 9.0)
    expected[:, 1] = 2
    expected[2:, 2:] = 2
    assert torch.equal(base.cpu(), expected)
    out = torch.empty(0, device=DEV)
    torch.sin(torch.ones(3, device=DEV), out=out)
    check_same(out, torch.sin(torch.ones(3)))
    wrong = torch.empty(5, device=DEV)
    with pytest.warns(UserWarning, match="resized"):
        torch.cos(torch.ones(3, device=DEV), out=wrong)
    check_same(wrong, torch.cos(torch.ones(3)))
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.sin(torch.ones(3, device=DEV), out=torch.empty(3, dtype=torch.int32, device=DEV))


def test_resizing_an_out_argument_warns_in_the_cpus_words_each_time() -> None:
    """The Meta kernels of some operators are Python's, with words of their own."""
    warned = []
    for device in ("cpu", DEV, DEV):
        x = torch.ones(3, 4, device=device)
        with recorded_warnings() as seen:
            result = torch.add(x, x, out=torch.empty(1, device=device))
        assert result.shape == (3, 4)
        warned.append(seen)
    assert len(warned[0]) == 1 and warned[0] == warned[1] == warned[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.int16])
def test_with_deterministic_algorithms_new_memory_has_known_contents(dtype: torch.dtype) -> None:
    def made(device: str) -> list[torch.Tensor]:
        like = torch.zeros(2, 3, dtype=dtype, device=device)
        return [
            torch.empty(3, dtype=dtype, device=device),
            torch.empty_strided((2, 3), (1, 2), dtype=dtype, device=device),
            torch.empty_like(like),
            like.new_empty(2),
            like.resize_(4, 3),
        ]

    torch.use_deterministic_algorithms(True)
    try:
        expected, actual = made("cpu"), made(DEV)
    finally:
        torch.use_deterministic_algorithms(False)
    check_same(actual, expected)
    assert expected[0].isnan().all() if expected[0].dtype.is_floating_point else expected[0].ne(0).all()


def test_indexing_takes_host_indices() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    d, i = x.to(DEV), torch.tensor([2, 0])
    check_same(d[:, i.to(DEV), :], x[:, i, :])
    check_same(d[:, i, :], x[:, i, :])
    d[:, i] = 0.0
    x[:, i] = 0.0
    check_same(d, x)
    d.index_put_((i[:1] * 0,), torch.ones(3, 4, device=DEV), accumulate=True)
    x.index_put_((i[:1] * 0,), torch.ones(3, 4), accumulate=True)
    check_same(d, x)
    check_same(d[d > 1], x[x > 1])


def test_masks_beside_other_indices() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    rows, plane = torch.tensor([True, False, True]), x[0] > 5
    columns = torch.tensor([1, 3])
    for device_result, expected in (
        (x.to(DEV)[:, rows.to(DEV), columns.to(DEV)], x[:, rows, columns]),
        (x.to(DEV)[:, plane.to(DEV)], x[:, plane]),
        (x.to(DEV)[1, rows], x[1, rows]),
        (x.to(DEV)[:, ~rows.to(DEV) & rows.to(DEV)], x[:, ~rows & rows]),
        (x.to(DEV)[torch.tensor(True, device=DEV)], x[torch.tensor(True)]),
    ):
        check_same(device_result, expected)
    leaf = x.to(DEV).requires_grad_()
    (leaf[leaf > 5] * 2).sum().backward()
    check_same(leaf.grad, (x > 5) * 2.0)
    with pytest.raises(IndexError, match=r"shape of the mask \[2\] at index 0 does not match"):
        x.to(DEV)[0, rows.to(DEV)[:2]]
    with pytest.raises(IndexError, match="too many indices for tensor of dimension 3"):
        torch.ops.aten.index(x.to(DEV), [rows[:2].to(DEV), None, None, None])


def test_functional_results_land_in_their_place() -> None:
    x = torch.randn(6, 8, 10)
    d = x.to(DEV)
    w, b = torch.randn(10), torch.randn(10)
    check_same(
        torch.native_layer_norm(d, [10], w.to(DEV), b.to(DEV), 1e-5),
        torch.native_layer_norm(x, [10], w, b, 1e-5),
    )
    check_same(torch.var_mean(d, dim=1), torch.var_mean(x, dim=1))
    check_same(torch.sort(d, dim=0), torch.sort(x, dim=0))
    check_same(torch.split_with_sizes_copy(d, [2, 4]), torch.split_with_sizes_copy(x, [2, 4]))
    check_same(torch._foreach_add([d, d[0]], 2.0), torch._foreach_add([x, x[0]], 2.0))


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adamax", "Rprop"]
)
@pytest.mark.parametrize("flavour", [{"foreach": True}, {"foreach": False}, {"fused": True}])
def test_optimizers(name: str, flavour: dict[str, bool]) -> None:
    cls = getattr(torch.optim, name)
    if "fused" in flavour and name not in ("SGD", "Adam", "AdamW", "Adagrad"):
        pytest.skip("has no fused form")
    shapes = [(4, 3), (3,), (2, 2, 2)]
    reference = [torch.randn(s).requires_grad_() for s in shapes]
    params = [p.detach().to(DEV).requires_grad_() for p in reference]
    optimizers = [cls(reference, lr=0.05, **flavour), cls(params, lr=0.05, **flavour)]
    for step in range(3):
        for p, d in zip(reference, params):
            p.grad = torch.sin(torch.arange(p.numel()) + step).reshape(p.shape)
            d.grad = p.grad.to(DEV)
        for optimizer in optimizers:
            optimizer.step()
    check_same(params, reference)


def test_training_step_matches_cpu_and_stays_on_the_device() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 5)
    )
    twin = torch.nn.Sequential(
        torch.nn.Linear(20, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 5)
    )
    twin.load_state_dict(model.state_dict())
    twin.to(DEV)
    x, y = torch.randn(32, 20), torch.randint(0, 5, (32,))
    torch.simdev.reset_fallbacks()
    with torch.simdev.fallback_policy("error"):
        for m, a, b in ((model, x, y), (twin, x.to(DEV), y.to(DEV))):
            optimizer = torch.optim.Adam(m.parameters(), lr=0.01)
            for _ in range(5):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(m(a), b).backward()
                optimizer.step()
    assert torch.simdev.fallbacks() == {}
    check_same(list(twin.parameters()), list(model.parameters()), rtol=1e-4, atol=1e-5)


# --- Asynchrony, errors, fallback -------------------------------------------------------


def test_operators_return_before_they_run() -> None:
    a = torch.randn(64, 64, device=DEV)
    torch.simdev.synchronize()
    torch.simdev._sleep(1000)
    b = torch.relu(a @ a + 1).sum(0).softmax(0)
    c = torch.cat([b, b]).index_select(0, torch.zeros(3, dtype=torch.long, device=DEV))
    assert not torch.simdev.current_stream().query()
    assert torch.isfinite(c.cpu()).all()


def test_an_index_out_of_range_surfaces_with_the_operators_name_and_the_device_works_on() -> None:
    x = torch.arange(5.0, device=DEV)
    with pytest.raises(RuntimeError, match=r"aten::index_select"):
        torch.index_select(x, 0, torch.tensor([9], device=DEV))
        torch.simdev.synchronize()
    with pytest.raises(RuntimeError, match=r"aten::index"):
        y = x[torch.tensor([7], device=DEV)]
        y.cpu()
    assert float(x.sum()) == 10.0


def test_shape_errors_come_at_once() -> None:
    a = torch.ones(2, 3, device=DEV)
    for bad in (
        lambda: a @ a,
        lambda: a + torch.ones(4, device=DEV),
        lambda: torch.cat([a, torch.ones(2, 2, device=DEV)]),
        lambda: a.masked_fill_(torch.ones(5, dtype=torch.bool, device=DEV), 1),
        lambda: a.view(5),
        lambda: torch.nn.functional.conv2d(
            torch.ones(1, 2, 4, 4, device=DEV), torch.ones(1, 3, 2, 2, device=DEV)
        ),
    ):
        with pytest.raises(RuntimeError):
            bad()
    with pytest.raises(IndexError):
        a.sum(dim=4)
    with pytest.raises(IndexError):
        a.select(0, 7)


def test_mixed_devices_are_refused() -> None:
    a, b = torch.ones(3, device=DEV), torch.ones(3)
    for bad in (
        lambda: a + b,
        lambda: b * a,
        lambda: torch.cat([a, b]),
        lambda: torch.nn.Linear(3, 1)(a),
        lambda: torch.where(a > 0, a, b),
        lambda: torch.index_select(a, 0, torch.tensor([0])),
        lambda: a + torch.ones(3, device=DEV + ":1"),
        lambda: torch.add(a, a, out=torch.empty(3)),
    ):
        with pytest.raises(RuntimeError, match=r"same device|two devices"):
            bad()
    assert (a + torch.tensor(1.0)).tolist() == [2, 2, 2]  # a host scalar is a number


def test_host_scalars_are_captured_by_value() -> None:
    a, s = torch.zeros(4, device=DEV), torch.tensor(5.0)
    torch.simdev._sleep(30)
    b = torch.where(a == 0, s, a)
    s.fill_(-1)
    assert b.tolist() == [5, 5, 5, 5]


def test_fallbacks_are_counted_and_can_be_refused() -> None:
    torch.simdev.reset_fallbacks()
    spectrum = torch.linalg.eigh(torch.diag(torch.tensor([2.0, 1.0])).to(DEV))
    assert spectrum.eigenvalues.device.type == DEV and spectrum.eigenvalues.tolist() == [1, 2]
    assert sum(n for name, n in torch.simdev.fallbacks().items() if "eigh" in name) == 1
    with torch.simdev.fallback_policy("error"), pytest.raises(NotImplementedError, match="eigh"):
        torch.linalg.eigh(torch.eye(3, device=DEV))
    with torch.simdev.fallback_policy("warn"), pytest.warns(UserWarning, match="eigh"):
        torch.linalg.eigh(torch.eye(3, device=DEV))
    with pytest.raises(ValueError), torch.simdev.fallback_policy("sometimes"):
        pass


def test_data_dependent_results_are_the_devices() -> None:
    x = torch.tensor([[0.0, 2.0], [0.0, 3.0]])
    d = x.to(DEV)
    calls = {
        "nonzero": lambda t: t.nonzero(),
        "nonzero out": lambda t: torch.nonzero(t, out=torch.empty(0, dtype=torch.long, device=t.device)),
        "masked_select": lambda t: t.masked_select(t > 1),
        "masked_select out": lambda t: torch.masked_select(t, t > 1, out=torch.empty(0, device=t.device)),
        "boolean mask": lambda t: t[t > 1],
        "unique": lambda t: torch.unique(t, return_inverse=True, return_counts=True),
        "unique_dim": lambda t: torch.unique(t, dim=0),
        "unique_consecutive": lambda t: torch.unique_consecutive(t),
        "bincount": lambda t: torch.bincount(t.long().flatten()),
        "repeat_interleave": lambda t: torch.repeat_interleave(t.long().flatten()),
        "nothing": lambda t: t[t > 9],
    }
    with torch.simdev.fallback_policy("error"):
        for name, call in calls.items():
            actual, expected = call(d), call(x)
            try:
                check_same(actual, expected)
            except AssertionError as error:
                raise AssertionError(name) from error
        assert torch.equal(d, d.clone()) and not torch.equal(d, d + 1)


def test_an_error_while_the_host_waits_is_its_own() -> None:
    """It comes from the call itself with the CPU's type and words, and leaves the stream as it was."""
    with pytest.raises(RuntimeError, match="expected BoolTensor for mask"):
        torch.ones(3, device=DEV).masked_select(torch.ones(3, device=DEV))
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(torch.tensor([-1], device=DEV))
    assert torch.ones(3, device=DEV).tolist() == [1, 1, 1]


def wild(*shape: int) -> torch.Tensor:
    """Indices of nothing, which no kernel may follow."""
    return torch.full(shape, 10**12, device=DEV)


def filled(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device=DEV)


ATEN = torch.ops.aten
UNCHECKED_BY_ATEN: dict[str, Callable[[], object]] = {
    "max_pool2d_with_indices_backward": lambda: ATEN.max_pool2d_with_indices_backward(
        filled(1, 1, 2, 2), filled(1, 1, 4, 4), [2, 2], [2, 2], [0, 0], [1, 1], False, wild(1, 1, 2, 2)
    ),
    "max_pool2d_with_indices_backward, channels last": lambda: ATEN.max_pool2d_with_indices_backward(
        *[filled(1, 8, n, n).to(memory_format=torch.channels_last) for n in (2, 4)],
        *([2, 2], [2, 2], [0, 0], [1, 1], False, wild(1, 8, 2, 2)),
    ),
    "max_pool3d_with_indices_backward": lambda: ATEN.max_pool3d_with_indices_backward(
        filled(1, 1, 1, 1, 1),
        filled(1, 1, 2, 2, 2),
        [2] * 3,
        [2] * 3,
        [0] * 3,
        [1] * 3,
        False,
        wild(*[1] * 5),
    ),
    "adaptive_max_pool2d_backward": lambda: ATEN.adaptive_max_pool2d_backward(
        filled(1, 2, 2), filled(1, 4, 4), wild(1, 2, 2)
    ),
    "adaptive_max_pool3d_backward": lambda: ATEN.adaptive_max_pool3d_backward(
        filled(1, 2, 2, 2), filled(1, 4, 4, 4), wild(1, 2, 2, 2)
    ),
    "embedding_dense_backward": lambda: ATEN.embedding_dense_backward(filled(3, 4), wild(3), 10, -1, True),
    "_embedding_bag_dense_backward, indices": lambda: ATEN._embedding_bag_dense_backward(
        filled(1, 4), wild(2), wild(2) * 0, wild(1) * 0 + 2, wild(1, 4) * 0, 10, False, 0, None
    ),
    "_embedding_bag_dense_backward, bags": lambda: ATEN._embedding_bag_dense_backward(
        filled(1, 4), wild(2) * 0, wild(2), wild(1) * 0 + 2, wild(1, 4) * 0, 10, False, 0, None
    ),
    "_embedding_bag_per_sample_weights_backward": lambda: ATEN._embedding_bag_per_sample_weights_backward(
        filled(1, 4), filled(10, 4), wild(2), wild(1) * 0, wild(2) * 0, 0
    ),
    "_ctc_loss": lambda: ATEN._ctc_loss(filled(5, 1, 4), wild(1, 2), [5], [2]),
    "_ctc_loss of tensors": lambda: ATEN._ctc_loss(
        filled(5, 1, 4), wild(1, 2), torch.tensor([5], device=DEV), torch.tensor([2], device=DEV)
    ),
    "_ctc_loss_backward": lambda: ATEN._ctc_loss_backward(
        filled(1), filled(5, 1, 4), wild(1, 2), [5], [2], filled(1), filled(1, 5, 5), 0
    ),
    "_ctc_loss_backward, steps": lambda: ATEN._ctc_loss_backward(
        filled(1), filled(5, 1, 4), wild(1, 2) * 0, [10**12], [2], filled(1), filled(1, 5, 5), 0
    ),
    "_ctc_loss_backward, labels": lambda: ATEN._ctc_loss_backward(
        filled(1), filled(5, 1, 4), wild(1, 2) * 0, [5], [10**12], filled(1), filled(1, 5, 5), 0
    ),
    "_embedding_bag, offsets": lambda: ATEN._embedding_bag(filled(10, 4), wild(2) * 0, wild(1)),
    "nll_loss_backward": lambda: ATEN.nll_loss_backward(
        filled(2), filled(2, 4), wild(2), None, 0, -100, filled()
    ),
    "nll_loss2d_backward": lambda: ATEN.nll_loss2d_backward(
        filled(1, 2, 2), filled(1, 4, 2, 2), wild(1, 2, 2), None, 0, -100, filled()
    ),
    "segment_reduce, lengths": lambda: torch.segment_reduce(filled(6), "sum", lengths=wild(1), unsafe=True),
    "segment_reduce, lengths of rows": lambda: torch.segment_reduce(
        filled(2, 6), "max", lengths=wild(2, 1), axis=1, unsafe=True
    ),
    "segment_reduce, offsets": lambda: torch.segment_reduce(filled(6), "sum", offsets=wild(2)),
    "_segment_reduce_backward, lengths": lambda: ATEN._segment_reduce_backward(
        filled(1), filled(1), filled(6), "sum", lengths=wild(1)
    ),
    "_segment_reduce_backward, offsets": lambda: ATEN._segment_reduce_backward(
        filled(1), filled(1), filled(6), "sum", offsets=wild(2)
    ),
    "_convert_indices_from_csr_to_coo": lambda: ATEN._convert_indices_from_csr_to_coo(wild(3), wild(2)),
    "_convert_indices_from_coo_to_csr": lambda: ATEN._convert_indices_from_coo_to_csr(wild(3), 2),
}


@pytest.mark.parametrize("name", UNCHECKED_BY_ATEN)
def test_wrong_indices_are_errors_of_the_device(name: str) -> None:
    """On the CPU these end the process: ATen's kernels follow any index."""
    with pytest.raises((torch.AcceleratorError, IndexError), match=f"(index|value) {10**12}"):
        UNCHECKED_BY_ATEN[name]()
        torch.simdev.synchronize()
    assert filled(3).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("lengths", "offsets"), [([4, 3], None), ([4, -3], None), (None, [0, 4, 3]), (None, [-1, 4, 6])]
)
def test_segments_lie_within_the_data(lengths: list[int] | None, offsets: list[int] | None) -> None:
    """Of lengths it is their sum that counts, and offsets must not decrease."""
    given = {
        name: torch.tensor(value, device=DEV)
        for name, value in (("lengths", lengths), ("offsets", offsets))
        if value is not None
    }
    words = r"index (7|-3|-1) is out|must not decrease"
    with pytest.raises(torch.AcceleratorError, match=words):
        torch.segment_reduce(filled(6), "sum", **given, unsafe=True).cpu()
    with pytest.raises(torch.AcceleratorError, match=words):
        ATEN._segment_reduce_backward(filled(2), filled(2), filled(6), "sum", **given).cpu()


def test_a_class_to_ignore_is_no_index() -> None:
    x, target = torch.randn(3, 4), torch.tensor([1, 77, 3])
    grads = []
    for device in ("cpu", DEV):
        leaf = x.detach().to(device).requires_grad_()
        loss = torch.nn.functional.nll_loss(leaf, target.to(device), ignore_index=77, reduction="none")
        loss.sum().backward()
        grads.append(leaf.grad)
    check_same(grads[1], grads[0])


@pytest.mark.parametrize(
    ("padding", "place"),
    [("border", "nan"), ("reflection", "nan"), ("reflection", "inf"), ("reflection", "3e38")],
)
def test_points_of_a_grid_that_are_nowhere_have_no_gradient(padding: str, place: str) -> None:
    """As on CUDA; on the CPU they end the process."""
    x = torch.rand(1, 2, 4, 4)
    grid = torch.rand(1, 3, 3, 2) * 2 - 1
    nowhere = grid.clone()
    nowhere[0, 1, 1, 0] = float(place)
    leaves = [t.to(DEV).requires_grad_() for t in (x, nowhere)]
    torch.nn.functional.grid_sample(*leaves, padding_mode=padding, align_corners=False).sum().backward()

    expected = [t.clone().requires_grad_() for t in (x, grid)]
    y = torch.nn.functional.grid_sample(*expected, padding_mode=padding, align_corners=False)
    cotangent = torch.ones_like(y)
    cotangent[..., 1, 1] = 0
    y.backward(cotangent)
    for actual, leaf in zip(leaves, expected, strict=True):
        check_same(actual.grad, leaf.grad)


def test_what_pads_the_targets_of_a_ctc_loss_may_be_anything() -> None:
    x = torch.randn(6, 2, 5).log_softmax(2)
    padded, together = torch.tensor([[1, 2, 99], [3, -7, -7]]), torch.tensor([1, 2, 3])
    lengths = torch.tensor([6, 6]), torch.tensor([2, 1])
    expected = torch.nn.functional.ctc_loss(x, together, *lengths, reduction="none")
    for targets in (padded, padded.int(), together):
        loss = torch.nn.functional.ctc_loss(x.to(DEV), targets.to(DEV), *lengths, reduction="none")
        check_same(loss, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.int16])
def test_printing_needs_nothing_of_the_host(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.5, -3e5], [float("inf"), 0.0]]).to(dtype)
    device = f", device='{torch.ones(1, device=DEV).device}'"
    with torch.simdev.fallback_policy("error"):
        printed = repr(x.to(DEV))
    assert printed.replace(device, "").split() == repr(x).split()


def test_custom_operator_with_a_cpu_kernel_runs_on_the_device() -> None:
    with torch.library._scoped_library("simdev_test", "FRAGMENT") as lib:
        lib.define("twice(Tensor x) -> Tensor")
        lib.impl("twice", lambda x: x * 2, "CPU")
        lib.impl("twice", lambda x: torch.empty_like(x), "Meta")
        lib.define("host_only(Tensor x) -> Tensor")
        out = torch.ops.simdev_test.twice(torch.arange(3.0, device=DEV))
        assert out.device.type == DEV and out.tolist() == [0, 2, 4]
        with pytest.raises(NotImplementedError):
            torch.ops.simdev_test.host_only(out)


def test_lazy_import_state_is_untouched_for_cpu_tensors() -> None:
    w = torch.ones(4, 4, requires_grad=True)
    (w @ w).sum().backward()
    assert w.grad is not None and w.grad.sum().item() == 128.0


def test_quantized_tensors_are_refused() -> None:
    x = torch.ones(2, 3)
    refusal = pytest.raises(NotImplementedError, match="no quantized tensors on simdev")
    with refusal:
        torch.quantize_per_tensor(x.to(DEV), 0.1, 0, torch.qint8)
    with refusal:
        torch.quantize_per_channel(
            x.to(DEV), torch.ones(2, device=DEV), torch.zeros(2, device=DEV), 0, torch.qint8
        )
    with refusal:
        torch.empty(3, dtype=torch.quint8, device=DEV)
    with warnings.catch_warnings(), refusal:
        warnings.simplefilter("ignore")  # newer releases call quantized tensors deprecated
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).to(DEV)
    check_same(
        torch.fake_quantize_per_tensor_affine(x.to(DEV), 0.3, 0, -8, 7),
        torch.fake_quantize_per_tensor_affine(x, 0.3, 0, -8, 7),
    )


def test_warnings_of_kernels_reach_the_host() -> None:
    boundaries, x = torch.arange(8.0, device=DEV).view(2, 4).t(), torch.ones(4, 2, device=DEV)
    with recorded_warnings() as seen:
        torch.searchsorted(boundaries, x)
        torch.simdev.synchronize()
    assert any("boundary tensor is non-contiguous" in warning for warning in seen)


def test_losses_warn_of_nothing_and_results_follow_their_inputs() -> None:
    x = torch.randn(4, 3).t()
    d = x.to(DEV)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for loss in (torch.nn.functional.mse_loss, torch.nn.functional.smooth_l1_loss):
            check_same(loss(d, d * 2), loss(x, x * 2))
    for function in (torch.logical_and, torch.complex, torch.polar, torch.floor_divide):
        check_same(function(d, d), function(x, x))


# --- Products of matrices large enough for oneDNN (csrc/aten/matrix_product.cpp) ----------------------------

FACTORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "by rows": lambda t: t.contiguous(),
    "by columns": lambda t: t.mT.contiguous().mT,
    "offset": lambda t: torch.nn.functional.pad(t, (3, 2, 1, 0))[..., 1:, 3:-2],
    "stepped": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "negated": lambda t: torch._neg_view(-t),
}


@pytest.mark.parametrize("second", FACTORS)
@pytest.mark.parametrize("first", FACTORS)
def test_large_products(first: str, second: str) -> None:
    a, b = FACTORS[first](torch.randn(420, 452)), FACTORS[second](torch.randn(452, 484))
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close((to_device(a, DEV) @ to_device(b, DEV)).cpu(), a @ b, **close)
    a, b = FACTORS[first](torch.randn(80, 96, 64)), FACTORS[second](torch.randn(80, 64, 160))
    x, y = to_device(a, DEV), to_device(b, DEV)
    torch.testing.assert_close(torch.bmm(x, y).cpu(), torch.bmm(a, b), **close)
    torch.testing.assert_close(
        torch.bmm(x[:1].expand_as(x), y).cpu(), torch.bmm(a[:1].expand_as(a), b), **close
    )


@pytest.mark.parametrize("shape", [(484,), (420, 1), (420, 484), ()], ids=str)
def test_large_products_with_an_addend(shape: tuple[int, ...]) -> None:
    a, b, c = torch.randn(420, 452), torch.randn(452, 484), torch.randn(shape)
    x, y, z = (t.to(DEV) for t in (a, b, c))
    close = {"rtol": 1e-4, "atol": 1e-4}
    for scale in ({}, {"beta": 0.5, "alpha": -2.0}, {"beta": 0}):
        torch.testing.assert_close(
            torch.addmm(z, x, y, **scale).cpu(), torch.addmm(c, a, b, **scale), **close
        )
    nothing = torch.full_like(z, float("nan"))
    assert torch.addmm(nothing, x, y, beta=0).isfinite().all()
    out = torch.zeros(420, 484, device=DEV)
    assert torch.addmm(z, x, y, out=out) is out
    torch.testing.assert_close(out.cpu(), torch.addmm(c, a, b), **close)
    torch.testing.assert_close(out.addmm_(x, y, beta=2).cpu(), 2 * torch.addmm(c, a, b) + a @ b, **close)
    batch = torch.randn(120, 96, 64)
    added = torch.randn(120, 96, 96)
    theirs = torch.baddbmm(added, batch, batch.mT, beta=3)
    ours = torch.baddbmm(added.to(DEV), batch.to(DEV), batch.to(DEV).mT, beta=3)
    torch.testing.assert_close(ours.cpu(), theirs, **close)
    ours = added.to(DEV).baddbmm_(batch.to(DEV), batch.to(DEV).mT, beta=3)
    torch.testing.assert_close(ours.cpu(), theirs, **close)
