"""Trains a small convolutional network on real handwritten digits, on simdev and on the CPU side by side.

Both runs start from the same weights and see the same batches in the same order, so their losses must agree:
the script exits with an error when they do not, or when the test accuracy stays below 97 %.  The data is
described in data/README.md.

    python examples/train_digits.py [--device simdev] [--epochs 10] [--no-compare]
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

DATA = Path(__file__).parent / "data" / "digits.npz"
BATCH = 64
TEST_IMAGES = 360
MIN_ACCURACY = 0.97
# Training amplifies the rounding differences between two orders of summation; they stay well below this.
LOSS_TOLERANCE = 5e-3


class DigitsNet(nn.Module):
    """Three convolutions with batch normalisation, 8x8 pixels in, 10 classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *self.block(1, 32),
            *self.block(32, 64),
            nn.MaxPool2d(2),
            *self.block(64, 64),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(64 * 2 * 2, 10)

    @staticmethod
    def block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
        return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).flatten(1))


@dataclass
class Split:
    """Images as float32 in [0, 1], shape (N, 1, 8, 8), and their labels."""

    images: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> Split:
        return Split(self.images.to(device), self.labels.to(device))


def load_digits() -> tuple[Split, Split]:
    """The training set and the test set: a fixed shuffle of the 1,797 digits, cut once."""
    with np.load(DATA) as file:
        images = torch.from_numpy(file["images"]).float().unsqueeze(1) / 16
        labels = torch.from_numpy(file["labels"]).long()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return Split(images[train], labels[train]), Split(images[test], labels[test])


class Progress:
    """A progress bar on a terminal; nothing when the output goes to a file."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.shown = label, total, sys.stdout.isatty()

    def update(self, done: int, loss: float) -> None:
        if self.shown:
            width = 30
            filled = width * done // self.total
            bar = "#" * filled + "." * (width - filled)
            print(f"\r{self.label} [{bar}] {done:>3}/{self.total} loss {loss:.4f}", end="", flush=True)

    def close(self) -> None:
        if self.shown:
            print("\r\033[K", end="", flush=True)


@dataclass
class Epoch:
    loss: float  # mean over the training batches
    test_loss: float
    accuracy: float  # on the test set, 0 to 1
    seconds: float  # training and evaluation


class Trainer:
    """One run: a model, its optimizer and the data on one device."""

    def __init__(
        self, device: torch.device, model: nn.Module, train: Split, test: Split, epochs: int
    ) -> None:
        self.device = device
        self.model = model.to(device)
        self.train, self.test = train.to(device), test.to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        self.batches = len(train.images) // BATCH
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, epochs * self.batches)
        self.history: list[Epoch] = []

    def step(self, index: Tensor) -> Tensor:
        """One training step on the images that index names; the loss stays on the device."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(self.train.images[index]), self.train.labels[index])
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def epoch(self, number: int) -> Epoch:
        start = time.perf_counter()
        self.model.train()
        shuffle = torch.randperm(len(self.train.images), generator=torch.Generator().manual_seed(number))
        index = shuffle.to(self.device)
        total = torch.zeros((), device=self.device)
        progress = Progress(f"epoch {number} on {self.device}", self.batches)
        for batch in range(self.batches):
            loss = self.step(index[batch * BATCH : (batch + 1) * BATCH])
            total += loss
            if batch % 4 == 3 and progress.shown:  # reading the loss waits for the device
                progress.update(batch + 1, loss.item())
        progress.close()
        test_loss, accuracy = self.evaluate()
        self.history.append(
            Epoch(total.item() / self.batches, test_loss, accuracy, time.perf_counter() - start)
        )
        return self.history[-1]

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        self.model.eval()
        output = self.model(self.test.images)
        loss = F.cross_entropy(output, self.test.labels)
        accuracy = (output.argmax(1) == self.test.labels).float().mean()
        return loss.item(), accuracy.item()


def describe(device: torch.device) -> str:
    if device.type == "cpu":
        return f"cpu ({torch.get_num_threads()} threads)"
    properties = torch.get_device_module(device).get_device_properties(device)
    gib = properties.total_memory / 2**30
    return f"{device} ({properties.name}, driver {properties.driver}, {gib:.1f} GiB)"


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a small CNN on 1,797 handwritten digits.")
    parser.add_argument("--device", default="simdev", help="device to train on (default: simdev)")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the training set (default: 10)")
    parser.add_argument("--no-compare", action="store_true", help="leave out the same run on the CPU")
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error("--epochs must be at least 1")

    device = torch.device(options.device)
    devices = [device]
    if not options.no_compare and device.type != "cpu":
        devices.append(torch.device("cpu"))

    torch.manual_seed(0)
    model = DigitsNet()
    train, test = load_digits()
    trainers = [Trainer(d, copy.deepcopy(model), train, test, options.epochs) for d in devices]

    parameters = sum(p.numel() for p in model.parameters())
    print(f"torch {torch.__version__}, {parameters:,} parameters, batch {BATCH}")
    print(f"{len(train.images)} training and {len(test.images)} test images")
    for trainer in trainers:
        print(f"device: {describe(trainer.device)}")
    print()
    columns = f"{'loss':>8}{'test loss':>11}{'accuracy':>10}{'time':>8}"
    print("     " + "".join(f" | {d!s:<{len(columns)}}" for d in devices))
    print("epoch" + f" | {columns}" * len(devices))
    for number in range(1, options.epochs + 1):
        row = [trainer.epoch(number) for trainer in trainers]
        cells = (f"{e.loss:8.4f}{e.test_loss:11.4f}{e.accuracy:10.2%}{e.seconds:7.2f}s" for e in row)
        print(f"{number:>5}" + "".join(f" | {cell}" for cell in cells), flush=True)
    print()
    return report(trainers)


def report(trainers: list[Trainer]) -> int:
    """Prints the verdict and returns the exit status: 0 when accuracy and agreement are as they must be."""
    failed = False
    for trainer in trainers:
        seconds = sum(epoch.seconds for epoch in trainer.history)
        last = trainer.history[-1]
        print(
            f"{trainer.device!s:>8}: test accuracy {last.accuracy:.2%}, loss {last.loss:.4f}, {seconds:.1f} s"
        )
        if last.accuracy <= MIN_ACCURACY:
            print(f"{trainer.device!s:>8}: FAILED, accuracy must exceed {MIN_ACCURACY:.0%}")
            failed = True
    if len(trainers) == 2:
        ours, reference = (trainer.history[-1] for trainer in trainers)
        difference = max(abs(ours.loss - reference.loss), abs(ours.test_loss - reference.test_loss))
        agrees = difference <= LOSS_TOLERANCE
        verdict = "agree" if agrees else "FAILED: they differ"
        print(f"final losses {verdict}: difference {difference:.1e}, tolerance {LOSS_TOLERANCE:.0e}")
        failed |= not agrees
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
