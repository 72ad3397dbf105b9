"""The fast slice of the sweep over compiled operators: one of each form that Inductor gives an operator.

All operators: ``python -m tests.conformance.sweep --check compiled``, which ``make conformance`` runs and which goes on
where it stopped.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.conformance import compiled, sweep
from tests.test_conformance import OPS

# Pointwise, reductions, indexed stores, products, convolution, pooling, factories, views, complex and linear algebra.
SLICE = """
    sub softmax cumsum sort index_put addmm nn.functional.conv2d nn.functional.max_pool2d arange as_strided
    view_as_complex triangular_solve
""".split()


@pytest.mark.parametrize("key", SLICE)
def test_compiled_operator(key):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled.check(OPS[key], values=OPS[key].name not in sweep.RANDOM)
