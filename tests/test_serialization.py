"""torch.save and torch.load, pickle and deepcopy: devices, aliasing and map_location."""

from __future__ import annotations

import collections
import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

import torch_simdev as simdev


def saved(obj) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(obj, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("index", [0, 1])
def test_the_location_tag_carries_the_index(index):
    storage = torch.empty(3, device=f"simdev:{index}").untyped_storage()
    assert torch.serialization.location_tag(storage) == f"simdev:{index}"


MAP_LOCATIONS = {
    "none": (None, "simdev:1"),
    "cpu": ("cpu", "cpu"),
    "type": ("simdev", "simdev:0"),
    "index": ("simdev:0", "simdev:0"),
    "same": ("simdev:1", "simdev:1"),
    "device": (torch.device("simdev", 0), "simdev:0"),
    "device without index": (torch.device("simdev"), "simdev:0"),
    "dict": ({"simdev:1": "cpu"}, "cpu"),
    "dict between devices": ({"simdev:1": "simdev:0"}, "simdev:0"),
    "dict that does not match": ({"simdev:0": "cpu"}, "simdev:1"),
    "callable": (lambda storage, location: storage, "cpu"),
    "callable to device": (lambda storage, location: storage.simdev(0), "simdev:0"),
}


@pytest.mark.parametrize("name", MAP_LOCATIONS)
@pytest.mark.parametrize("weights_only", [True, False])
def test_map_location(name, weights_only):
    map_location, expected = MAP_LOCATIONS[name]
    file = saved({"w": torch.arange(3.0, device="simdev:1")})
    loaded = torch.load(file, map_location=map_location, weights_only=weights_only)["w"]
    assert loaded.device == torch.device(expected)
    assert loaded.tolist() == [0, 1, 2]


def test_a_location_without_index_means_the_current_device():
    file = saved(torch.arange(3.0))
    with simdev.device(1):
        assert torch.load(file, map_location="simdev").device == torch.device("simdev", 1)


def test_old_file_format():
    file = io.BytesIO()
    torch.save(torch.arange(4, device="simdev:1")[1:], file, _use_new_zipfile_serialization=False)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded.device == torch.device("simdev", 1)
    assert loaded.tolist() == [1, 2, 3]


def test_mmap(tmp_path, dev):
    path = tmp_path / "weights.pt"
    torch.save(torch.arange(1000.0, device=dev), path)
    assert torch.equal(torch.load(path, mmap=True, map_location=dev).cpu(), torch.arange(1000.0))


def test_fewer_devices_than_at_saving(run_python, tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(torch.arange(3.0, device="simdev:1"), path)
    code = f"import torch; print(torch.load({str(path)!r}, map_location={{}}).device)"
    result = run_python(code.format("None"), check=False, SIMDEV_DEVICE_COUNT="1")
    message = result.stderr.strip().splitlines()[-1]
    assert "RuntimeError" in message
    assert "SIMDEV device 1" in message
    assert "device_count() is 1" in message
    assert "map_location" in message
    assert run_python(code.format("'cpu'"), SIMDEV_DEVICE_COUNT="1").stdout.strip() == "cpu"


def test_aliasing_is_kept_inside_one_file(dev):
    base = torch.arange(6.0, device=dev)
    base2, view2 = torch.load(saved([base, base[2:4]]))
    assert base2.device == view2.device == dev
    view2.zero_()
    assert base2.tolist() == [0, 1, 0, 0, 4, 5]


SAMPLES = {
    "strided": lambda dev: torch.arange(12.0, device=dev).view(3, 4).t(),
    "bfloat16": lambda dev: torch.arange(5, device=dev).bfloat16(),
    "complex": lambda dev: torch.arange(5, device=dev).to(torch.complex64),
    "bool": lambda dev: torch.tensor([True, False], device=dev),
    "empty": lambda dev: torch.empty(0, 3, device=dev),
    "scalar": lambda dev: torch.tensor(3.5, device=dev),
    "conjugate": lambda dev: torch.tensor([1 + 2j], device=dev).conj(),
    "parameter": lambda dev: torch.nn.Parameter(torch.ones(3, device=dev)),
    "buffer": lambda dev: torch.nn.Buffer(torch.ones(3, device=dev)),
    "frozen": lambda dev: torch.nn.Parameter(torch.ones(3, device=dev), requires_grad=False),
}
COPIES = {
    "save": lambda obj: torch.load(saved(obj)),
    "pickle": lambda obj: pickle.loads(pickle.dumps(obj)),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("what", SAMPLES)
def test_copies_of_tensors(how, what):
    tensor = SAMPLES[what](torch.device("simdev", 1))
    copied = COPIES[how](tensor)
    assert type(copied) is type(tensor)
    assert (copied.device, copied.dtype, copied.stride()) == (tensor.device, tensor.dtype, tensor.stride())
    assert copied.requires_grad == tensor.requires_grad
    assert torch.equal(copied.cpu(), tensor.cpu())
    if tensor.numel():
        assert copied.data_ptr() != tensor.data_ptr()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("how", ["save", "deepcopy"])  # pickle itself copies each tensor's storage on its own
def test_copies_of_storages_keep_their_sharing(how):
    base = torch.arange(4, dtype=torch.uint8, device="simdev:1")
    copied = COPIES[how]([base, base[1:], base.untyped_storage()])
    assert copied[2].device == torch.device("simdev", 1)
    assert copied[2].nbytes() == 4
    copied[0].fill_(9)
    assert copied[1].tolist() == [9, 9, 9]
    assert copied[2].data_ptr() == copied[0].data_ptr()
    assert base.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("how", COPIES)
def test_copies_of_models_and_optimizers(how, dev):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).to(dev)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4, device=dev)).sum().backward()
    optimizer.step()
    state, optimizer_state = COPIES[how]((model.state_dict(), optimizer.state_dict()))
    assert {tensor.device for tensor in state.values()} == {dev}
    other = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).to(dev)
    other.load_state_dict(state)
    other_optimizer = torch.optim.Adam(other.parameters())
    other_optimizer.load_state_dict(optimizer_state)
    for net, step in ((model, optimizer), (other, other_optimizer)):
        step.zero_grad()
        net(torch.arange(8.0, device=dev).view(2, 4)).square().sum().backward()
        step.step()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours.cpu(), theirs.cpu())


def test_deepcopy_keeps_ties_and_gradients(dev):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(2, 2, bias=False)
            self.outer = torch.nn.Linear(2, 2, bias=False)
            self.outer.weight = self.inner.weight

    model = Tied().to(dev)
    copied = copy.deepcopy(model)
    assert copied.inner.weight is copied.outer.weight
    assert copied.inner.weight is not model.inner.weight
    assert copied.inner.weight.data_ptr() != model.inner.weight.data_ptr()

    leaf = torch.ones(2, device=dev, requires_grad=True)
    (leaf * 3).sum().backward()
    copied = copy.deepcopy(leaf)
    assert copied.grad.tolist() == [3, 3]
    assert copied.grad.data_ptr() != leaf.grad.data_ptr()


def test_attributes_survive(dev):
    tensor = torch.ones(2, device=dev)
    tensor.note = collections.OrderedDict(a=1)
    assert copy.deepcopy(tensor).note == {"a": 1}
    assert pickle.loads(pickle.dumps(tensor)).note == {"a": 1}


def test_state_dicts_move_between_host_and_device(dev):
    host, device = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2, device=dev)
    device.load_state_dict(host.state_dict())
    assert device.weight.device == dev
    assert torch.equal(device.weight.cpu(), host.weight)
    host.load_state_dict({name: value * 2 for name, value in device.state_dict().items()})
    assert torch.equal(device.weight.cpu() * 2, host.weight)


def test_sharing_with_another_process_is_refused_clearly(dev):
    """In the parent, at pickling; not a crash, and no message about the host's shared memory."""
    tensor = torch.ones(3, device=dev)
    for obj in (tensor, torch.nn.Linear(2, 2).to(dev), tensor.untyped_storage()):
        with pytest.raises(NotImplementedError, match=r"simdev tensors cannot be shared.*tensor\.cpu\(\)"):
            ForkingPickler.dumps(obj)
    ForkingPickler.dumps(torch.ones(3))
