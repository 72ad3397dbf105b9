"""Sparse tensors on the device: construction, conversion, arithmetic and gradients against the CPU's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.conformance.compare import check_same

DEV = "simdev"
LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def dense(rows: int = 4, columns: int = 6) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(rows, columns) * (torch.rand(rows, columns) > 0.5)


def sparse(tensor: torch.Tensor, layout: torch.layout) -> torch.Tensor:
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    return tensor.to_sparse(layout=layout, **blocks)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_conversions_and_transfers(layout: torch.layout) -> None:
    x = dense()
    reference, moved, made = sparse(x, layout), sparse(x, layout).to(DEV), sparse(x.to(DEV), layout)
    for tensor in (moved, made):
        assert tensor.layout == layout
        assert tensor.values().device.type == DEV
        assert torch.equal(tensor.to_dense().cpu(), x)
        assert torch.equal(tensor.cpu().to_dense(), x)
        assert torch.equal(tensor.values().cpu(), reference.values())
        assert tensor._nnz() == reference._nnz()


def test_construction_from_parts() -> None:
    indices, values = torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.tensor([3.0, 4.0, 5.0])
    t = torch.sparse_coo_tensor(indices.to(DEV), values.to(DEV), (2, 3))
    assert not t.is_coalesced()
    assert t.coalesce().values().tolist() == [3, 9]
    assert torch.sparse_coo_tensor(indices, values, (2, 3), device=DEV).to_dense().tolist() == [
        [0, 0, 3],
        [9, 0, 0],
    ]
    csr = torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2], device=DEV),
        torch.tensor([2, 0], device=DEV),
        torch.ones(2, device=DEV),
        (2, 3),
    )
    assert csr.to_dense().tolist() == [[0, 0, 1], [1, 0, 0]]
    with pytest.raises(RuntimeError, match="must match"):
        torch.sparse_coo_tensor(indices, values.to(DEV), (2, 3))
    with pytest.raises(RuntimeError, match="size is inconsistent"):
        torch.sparse_coo_tensor(indices.to(DEV), values.to(DEV), (2, 2), check_invariants=True)


OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": lambda s, d: torch.sparse.mm(s, d),
    "matmul": lambda s, d: s @ d,
    "addmm": lambda s, d: torch.sparse.addmm(torch.ones(4, 3, device=d.device), s, d),
    "add": lambda s, d: (s + s).to_dense(),
    "scale": lambda s, d: (s * 2.0).to_dense(),
    "sum": lambda s, d: torch.sparse.sum(s),
    "sum over rows": lambda s, d: torch.sparse.sum(s, 0).to_dense(),
    "softmax": lambda s, d: torch.sparse.softmax(s, 1).to_dense(),
    "log_softmax": lambda s, d: torch.sparse.log_softmax(s, 1).to_dense(),
    "transpose": lambda s, d: s.t().to_dense(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_and_gradients(name: str) -> None:
    operation = OPERATIONS[name]
    results = []
    for device in ("cpu", DEV):
        s = dense().to_sparse().to(device).requires_grad_()
        torch.manual_seed(1)
        d = torch.randn(6, 3).to(device).requires_grad_()
        out = operation(s, d)
        out.sum().backward()
        results.append((out, s.grad.to_dense(), d.grad))
    (cpu_out, cpu_s, cpu_d), (out, grad_s, grad_d) = results
    check_same(out, cpu_out)
    check_same(grad_s, cpu_s)
    if cpu_d is not None:
        check_same(grad_d, cpu_d)


@pytest.mark.parametrize("layout", LAYOUTS[1:3])
def test_compressed_arithmetic(layout: torch.layout) -> None:
    x, d = dense(), torch.randn(6, 3)
    s = sparse(x.to(DEV), layout)
    check_same(s @ d.to(DEV), x @ d)
    check_same((s * 3).to_dense(), x * 3)
    check_same(s.to_sparse(layout=torch.sparse_coo).to_dense(), x)


def test_in_place_and_embedding_gradients() -> None:
    x = dense()
    s = x.to(DEV).to_sparse()
    s.add_(s)
    check_same(s.to_dense(), 2 * x)
    s.mul_(0.5)
    check_same(s.to_dense(), x)
    embedding = torch.nn.Embedding(5, 3, sparse=True).to(DEV)
    embedding(torch.tensor([1, 2, 1], device=DEV)).sum().backward()
    assert embedding.weight.grad.coalesce().values().tolist() == [[2, 2, 2], [1, 1, 1]]
    before = embedding.weight.detach().cpu()
    torch.optim.SGD(embedding.parameters(), lr=1.0).step()
    assert (before - embedding.weight.detach().cpu()).sum(1).tolist() == pytest.approx(
        [0, 6, 3, 0, 0], abs=1e-5
    )


def test_a_dense_operator_refuses_a_sparse_tensor_as_on_the_cpu() -> None:
    s = dense().to_sparse()
    for device in ("cpu", DEV):
        with pytest.raises(NotImplementedError):
            torch.cumsum(s.to(device), 0)


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
def test_adding_a_matrix_to_itself(layout: torch.layout) -> None:
    """For most layouts the CPU can add only a tensor and itself."""
    x = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    s = sparse(x.to(DEV), layout)
    check_same((s + s).to_dense(), 2 * x)


def rows_of(compressed: list[int], plain: list[int], layout: torch.layout) -> torch.Tensor:
    """A square matrix, whose elements may be blocks of 2 x 2, from indices that nobody has checked."""
    blocked = layout in (torch.sparse_bsr, torch.sparse_bsc)
    return torch.sparse_compressed_tensor(
        torch.tensor(compressed, device=DEV),
        torch.tensor(plain, device=DEV),
        torch.ones((len(plain), 2, 2) if blocked else len(plain), device=DEV),
        (2 * len(compressed) - 2,) * 2 if blocked else (len(compressed) - 1,) * 2,
        layout=layout,
        check_invariants=False,
    )


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
@pytest.mark.parametrize(
    ("compressed", "plain"),
    [([0, 1, 10**12], [0, 1]), ([0, 10**12, 2], [0, 1]), ([0, 1, 1], [0, 1]), ([0, 1, 2], [0, 10**12])],
)
def test_wrong_indices_of_rows_are_errors(
    layout: torch.layout, compressed: list[int], plain: list[int]
) -> None:
    """On the CPU these end the process: its kernels follow what was not checked when the tensor was made."""
    matrix = rows_of(compressed, plain, layout)
    with pytest.raises(
        (IndexError, torch.AcceleratorError), match=f"index {10**12} is out|must begin with 0"
    ):
        matrix.to_dense().cpu()
    with pytest.raises(
        (IndexError, torch.AcceleratorError), match=f"index {10**12} is out|must begin with 0"
    ):
        (matrix @ torch.ones(matrix.size(1), 3, device=DEV)).cpu()
    assert rows_of([0, 1, 2], [1, 0], layout).to_dense().sum() in (2, 8)


@pytest.mark.parametrize(
    "use",
    [
        torch.Tensor.to_dense,
        torch.Tensor.coalesce,
        lambda s: s @ torch.ones(2, 3, device=DEV),
        lambda s: s + s,
    ],
)
def test_wrong_coordinates_are_errors(use: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for index in (-1, 2, 10**12):
        coordinates = torch.tensor([[0, index], [0, 1]], device=DEV)
        s = torch.sparse_coo_tensor(coordinates, torch.ones(2, device=DEV), (2, 2), check_invariants=False)
        with pytest.raises(IndexError, match=f"index {index} is out of bounds for size 2"):
            use(s)
