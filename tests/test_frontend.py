"""The Python frontend: torch.cuda's names and signatures, generated methods, default devices, module.to()."""

from __future__ import annotations

import ast
import copy
import inspect
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_simdev as simdev

# --- Names --------------------------------------------------------------------------------------------------

# What torch.cuda has and simdev must have with the same parameters.
SAME_SIGNATURE = """
_exchange_device _get_device_index _get_rng_state_offset _is_in_bad_fork _lazy_call _lazy_init
_maybe_exchange_device _set_rng_state_offset _set_stream_by_id can_device_access_peer current_device
current_stream default_stream device device_count device_of get_device_capability get_device_name
get_device_properties get_rng_state get_rng_state_all get_stream_from_external init initial_seed is_available
is_bf16_supported is_initialized manual_seed manual_seed_all seed seed_all set_device set_rng_state
set_rng_state_all set_stream stream StreamContext synchronize
Event.record Event.wait Event.query Event.elapsed_time Event.synchronize
Stream.wait_event Stream.wait_stream Stream.record_event Stream.query Stream.synchronize
empty_cache max_memory_allocated max_memory_reserved mem_get_info memory_allocated memory_reserved
memory_stats memory_summary reset_peak_memory_stats reset_accumulated_memory_stats
""".split()

# What harnesses of device-agnostic tests look up.
NEEDED = """
Event ExternalStream Stream default_generators _initialized get_amp_supported_dtype fallbacks reset_fallbacks
fallback_policy _sleep driver amp random streams memory
""".split()


def resolve(module, dotted):
    for name in dotted.split("."):
        module = getattr(module, name)
    return module


def parameters(function):
    return [(name, p.kind) for name, p in inspect.signature(function).parameters.items() if name != "self"]


@pytest.mark.parametrize("name", SAME_SIGNATURE)
def test_names_and_parameters_are_cudas(name):
    ours = resolve(simdev, name)
    theirs = resolve(torch.cuda, name)
    assert callable(ours)
    try:
        expected = parameters(theirs)
        actual = parameters(ours)
    except ValueError:  # a method of a C class: torch.Event's and torch.cuda.Event's are alike
        return
    names = [parameter for parameter, _ in expected]
    positions = [parameter for parameter, _ in actual]
    if "exc_info" not in positions:
        assert positions == names


@pytest.mark.parametrize("name", NEEDED)
def test_further_names_exist(name):
    assert hasattr(torch.simdev, name)


def test_unknown_names_raise_attribute_errors():
    with pytest.raises(AttributeError, match=r"torch\.simdev"):
        torch.simdev.does_not_exist  # noqa: B018
    assert not hasattr(torch.simdev, "nccl")


def test_every_public_function_is_documented():
    for name in dir(simdev):
        value = getattr(simdev, name)
        if name.startswith("_") or inspect.ismodule(value) or not callable(value):
            continue
        if getattr(value, "__module__", "").startswith("torch_simdev"):
            assert inspect.getdoc(value), name


def test_the_stub_file_lists_what_the_extension_module_has():
    stub = ast.parse((Path(simdev.__file__).parent / "_C.pyi").read_text())
    listed = {node.name for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    present = {name for name in dir(simdev._C) if not name.startswith("__")}
    assert listed == present


def test_the_module_is_registered_under_both_names():
    import torch.simdev.random as by_torch

    import torch_simdev.random as by_package

    assert torch.simdev is simdev is torch.get_device_module("simdev") is sys.modules["torch.simdev"]
    assert by_torch is by_package is simdev.random
    assert torch._C._get_privateuse1_backend_name() == "simdev"


def test_supported_amp_dtypes():
    assert {torch.float16, torch.bfloat16} <= set(simdev.get_amp_supported_dtype())
    assert simdev.is_bf16_supported()


# --- Loading ------------------------------------------------------------------------------------------------


def test_importing_again_after_removal_from_sys_modules(run_python):
    run_python("""
import sys, importlib, torch
first = torch.simdev
for name in [name for name in sys.modules if name.startswith("torch_simdev") and not name.endswith("._C")]:
    del sys.modules[name]
import torch_simdev
importlib.reload(torch_simdev)
assert torch.simdev is torch_simdev is not first
assert torch.ones(2).simdev().is_simdev and torch.ones(1, device="simdev").sum().item() == 1
# torch 2.11 does not show the name there; later ones may not show it twice.
assert repr(torch._C._autograd.DeviceType.PrivateUse1).count("SIMDEV") <= 1
""")


def test_another_out_of_tree_device_is_named(run_python):
    code = """
import torch
torch.utils.rename_privateuse1_backend("other")
import torch_simdev
"""
    result = run_python(code, check=False, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    message = result.stderr.strip().splitlines()[-1]
    assert "ImportError" in message
    assert "'other'" in message


def test_import_loads_none_of_the_slow_packages(run_python):
    """What they would cost is seconds; the rest is measured in benchmarks/eager.py."""
    code = """
import sys, torch
before = set(sys.modules)
import torch_simdev
added = set(sys.modules) - before
print(sorted(name for name in added if not name.startswith(("torch_simdev", "torch.simdev"))))
"""
    added = run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout
    assert not any(name in added for name in ("torch._dynamo", "torch._inductor", "numpy", "sympy")), added


# --- Generated methods --------------------------------------------------------------------------------------


def test_tensor_methods(dev):
    x = torch.ones(3)
    assert not x.is_simdev
    assert x.simdev().device == dev
    assert x.simdev(1).device == torch.device("simdev", 1)
    assert x.simdev("simdev:1").is_simdev
    y = x.simdev()
    assert y.simdev() is y
    with pytest.raises(RuntimeError, match="Invalid device"):
        x.simdev("cpu")


def test_module_storage_and_packed_sequence_methods(dev):
    assert nn.Linear(2, 2).simdev(1).weight.device == torch.device("simdev", 1)
    storage = torch.arange(3, dtype=torch.uint8).untyped_storage().simdev()
    assert storage.is_simdev
    assert storage.device == dev
    assert storage.cpu().tolist() == [0, 1, 2]
    assert storage.simdev() is storage
    assert storage.simdev(1).device == torch.device("simdev", 1)
    packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]).simdev()
    assert packed.is_simdev
    assert packed.data.device == dev
    assert torch.UntypedStorage(4, device=dev).device == dev


# --- Default devices ----------------------------------------------------------------------------------------


def test_device_contexts(dev):
    with torch.device("simdev"):
        assert torch.ones(2).device == dev
        assert nn.Linear(2, 2).weight.device == dev
        assert torch.tensor([1.0]).device == dev
        assert torch.arange(3, device="cpu").device.type == "cpu"
        with torch.device("simdev:1"):
            assert torch.zeros(1).device == torch.device("simdev", 1)
    assert torch.ones(2).device.type == "cpu"


def test_the_default_device():
    torch.set_default_device("simdev:1")
    try:
        assert torch.get_default_device() == torch.device("simdev", 1)
        assert torch.empty(2).device == torch.randn(2).device == torch.device("simdev", 1)
        assert torch.eye(2).sum().item() == 2
    finally:
        torch.set_default_device(None)
    assert torch.empty(2).device.type == "cpu"


def test_devices_print_and_compare():
    assert str(torch.device("simdev", 1)) == "simdev:1"
    assert torch.device("simdev") != torch.device("simdev", 0)
    assert "device='simdev:0'" in repr(torch.ones(2, device="simdev"))
    assert torch.ones(1, device="simdev").type() == "torch.simdev.FloatTensor"


# --- module.to() --------------------------------------------------------------------------------------------
# PyTorch by itself refuses `parameter.data = tensor` between the host and an out-of-tree device; Module.to()
# then makes new parameters and unties weights.  csrc/runtime/set_data.cpp changes that.


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.decoder = nn.Linear(4, 4)
        self.decoder.weight = self.encoder.weight
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.decoder.register_buffer("scale", self.scale)

    def forward(self, x):
        return self.decoder(self.encoder(x)) * self.scale


MOVES = {
    "to device": ("cpu", "simdev:0"),
    "to host": ("simdev:0", "cpu"),
    "between devices": ("simdev:0", "simdev:1"),
}


@pytest.mark.parametrize("move", MOVES)
def test_parameters_keep_their_identity(move):
    source, target = map(torch.device, MOVES[move])
    model = Tied().to(source)
    weight = model.encoder.weight
    reference = weakref.ref(weight)
    values = weight.detach().cpu().clone()
    weight.note = "kept"
    assert model.to(target) is model
    assert model.encoder.weight is weight is model.decoder.weight is reference()
    assert weight.device == target
    assert weight.note == "kept"
    assert isinstance(weight, nn.Parameter)
    assert weight.requires_grad
    assert weight.is_leaf
    assert torch.equal(weight.detach().cpu(), values)
    assert model.scale.device == target
    assert len(list(model.parameters())) == 3


@pytest.mark.parametrize("move", MOVES)
def test_gradients_move_along_and_backward_works_after_the_move(move):
    source, target = map(torch.device, MOVES[move])
    model = Tied().to(source)
    model(torch.ones(2, 4, device=source)).sum().backward()
    before = model.encoder.weight.grad.cpu().clone()
    gradient = model.encoder.weight.grad
    model.to(target)
    assert model.encoder.weight.grad is gradient
    assert gradient.device == target
    model(torch.ones(2, 4, device=target)).sum().backward()
    torch.testing.assert_close(model.encoder.weight.grad.cpu(), 2 * before)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_an_optimizer_built_before_the_move_trains_the_moved_model(make, dev):
    torch.manual_seed(0)
    host = Tied()
    device = copy.deepcopy(host)
    optimizers = [make(model.parameters(), lr=0.1) for model in (host, device)]
    device.to(dev)
    for _ in range(3):
        for model, optimizer, where in zip((host, device), optimizers, ("cpu", dev), strict=True):
            optimizer.zero_grad()
            model(torch.ones(2, 4, device=where)).square().sum().backward()
            optimizer.step()
    for ours, theirs in zip(host.parameters(), device.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.cpu(), rtol=1e-4, atol=1e-5)


def test_hooks_survive_the_move(dev):
    model = nn.Linear(2, 2)
    calls = []
    model.weight.register_hook(lambda gradient: calls.append(("gradient", gradient.device)))
    model.weight.register_post_accumulate_grad_hook(lambda p: calls.append(("accumulated", p.device)))
    model.register_forward_hook(lambda module, args, output: calls.append(("forward", output.device)))
    model.to(dev)(torch.ones(1, 2, device=dev)).sum().backward()
    assert calls == [("forward", dev), ("gradient", dev), ("accumulated", dev)]


def test_frozen_parameters_stay_frozen(dev):
    model = nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    model.to(dev)
    assert not model.weight.requires_grad
    assert model.bias.requires_grad


def test_dtype_and_device_change_together(dev):
    model = Tied()
    weight = model.encoder.weight
    model.to(dev, torch.float64)
    assert model.encoder.weight is weight is model.decoder.weight
    assert (weight.dtype, weight.device) == (torch.float64, dev)


def test_lazy_and_parametrized_modules_move(dev):
    lazy = nn.LazyLinear(3).to(dev)
    assert lazy(torch.ones(2, 5, device=dev)).shape == (2, 3)
    assert lazy.weight.device == dev
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    expected = normed(torch.ones(1, 3))
    torch.testing.assert_close(normed.to(dev)(torch.ones(1, 3, device=dev)).cpu(), expected)


def test_meta_modules_are_replaced_as_on_cuda(dev):
    model = nn.Linear(2, 2, device="meta").to_empty(device=dev)
    assert model.weight.device == dev
    nn.init.ones_(model.weight)
    assert model.weight.sum().item() == 4


def test_setting_data_directly(dev):
    parameter = nn.Parameter(torch.ones(3))
    version = parameter._version
    parameter.data = torch.full((2, 2), 3.0, device=dev)
    assert (parameter.device, parameter.shape, parameter._version) == (dev, (2, 2), version)
    assert (parameter * 2).sum().item() == 24
    parameter.data = parameter.data.cpu()
    assert parameter.device.type == "cpu"
    sparse = torch.eye(2).to_sparse()
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        sparse.data = torch.ones(2, 2, device=dev)


def test_swapping_and_overwriting_parameters_still_work(dev):
    for flag in ("set_swap_module_params_on_conversion", "set_overwrite_module_params_on_conversion"):
        getattr(torch.__future__, flag)(True)
        try:
            model = nn.Linear(2, 2).to(dev)
            assert model.weight.device == dev
            assert model(torch.ones(1, 2, device=dev)).shape == (1, 2)
        finally:
            getattr(torch.__future__, flag)(False)


# --- Fallbacks ----------------------------------------------------------------------------------------------


def test_fallback_policies_nest_and_are_checked():
    assert simdev.get_fallback_policy() == "allow"
    with simdev.fallback_policy("warn"):
        with simdev.fallback_policy("error"):
            assert simdev.get_fallback_policy() == "error"
        assert simdev.get_fallback_policy() == "warn"
    assert simdev.get_fallback_policy() == "allow"
    simdev.fallback_policy("error")
    assert simdev.get_fallback_policy() == "error"
    simdev.fallback_policy("allow")
    with pytest.raises(ValueError, match="allow, warn, error"):
        simdev.fallback_policy("never")


def test_fallbacks_are_counted_warned_about_and_refused(dev):
    symmetric = torch.eye(3, device=dev)
    simdev.reset_fallbacks()
    assert simdev.fallbacks() == {}
    torch.linalg.eigh(symmetric)
    ((name, count),) = [item for item in simdev.fallbacks().items() if "eigh" in item[0]]
    assert count == 1
    with simdev.fallback_policy("warn"), pytest.warns(UserWarning, match="eigh"):
        torch.linalg.eigh(symmetric)
    assert simdev.fallbacks()[name] == 2
    with simdev.fallback_policy("error"), pytest.raises(NotImplementedError, match="eigh"):
        torch.linalg.eigh(symmetric)


# --- Upstream limitations -------------------------------------------------------------------------------
# Each test fails when PyTorch no longer has the limitation; what works around it can go then.


def test_events_still_refuse_subclasses_as_argument():
    """Else torch_simdev.Event needs no elapsed_time of its own."""
    start, end = (simdev.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(RuntimeError, match=r"torch\.Event object"):
        torch.Event.elapsed_time(start, end)


def test_dlpack_shares_memory(dev):
    t = torch.arange(4.0, device=dev)
    u = torch.from_dlpack(t)
    u[0] = 7
    assert t[0].item() == 7
    assert u.device == t.device
    assert t.__dlpack_device__()[1] == t.device.index
    assert torch.ones(1).__dlpack_device__()[1] == 0


def test_dlpack_still_does_not_know_renamed_devices(dev):
    """Else compat.py needs no __dlpack_device__ of its own."""
    from torch_simdev import compat

    with pytest.raises(ValueError, match="Unknown device type simdev"):
        compat._torch_dlpack_device(torch.ones(1, device=dev))


@pytest.mark.parametrize("dtype", [torch.int16, torch.float32, torch.complex64, torch.int8, torch.float64])
def test_byteswap_of_a_storage(dev, dtype):
    x = torch.arange(1, 5).to(dtype)
    y = x.to(dev)
    for tensor in (x, y):
        tensor.untyped_storage().byteswap(dtype)
    assert torch.equal(y.cpu().view(torch.uint8), x.view(torch.uint8))
    with pytest.raises(RuntimeError, match="the length of data is not a multiple of 8"):
        torch.ones(3, device=dev).untyped_storage().byteswap(torch.float64)


def test_byteswap_still_writes_through_any_data_pointer(run_python):
    """Else compat.py needs no byteswap of its own."""
    code = """
import torch
from torch_simdev import compat
compat._torch_byteswap(torch.ones(2, device="simdev").untyped_storage(), torch.float32)
"""
    assert run_python(code, check=False).returncode < 0


def test_sharing_still_fails_in_the_hosts_shared_memory(dev):
    """Else compat.py needs no reducer of its own."""
    with pytest.raises(RuntimeError, match="only available on CPU"):
        torch.multiprocessing.reductions.reduce_storage(torch.ones(3, device=dev).untyped_storage())


def test_out_of_tree_tensors_still_cannot_replace_data_by_default(run_python):
    """Else csrc/runtime/set_data.cpp is unnecessary."""
    code = """
import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
_setup_privateuseone_for_python_backend("fakedev")
tensor = torch._C._acc.create_empty_tensor((3,), torch.float32)
assert tensor.device.type == "fakedev"
print(torch._has_compatible_shallow_copy_type(torch.ones(3), tensor))
"""
    assert run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout.strip() == "False"
