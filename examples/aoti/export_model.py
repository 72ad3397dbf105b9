"""Compiles a model and its weights into a package that needs no Python: `export_model.py model.pt2`."""

import sys

import torch
from torch import nn


class Classifier(nn.Module):
    """Two linear layers on vectors of 64 numbers, for ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).softmax(-1)


def example_input(batch: int) -> torch.Tensor:
    """The same numbers as main.cpp makes."""
    return torch.linspace(-1, 1, batch * 64).reshape(batch, 64)


def main(path: str) -> None:
    torch.manual_seed(0)
    model = Classifier().to("simdev").eval()
    with torch.no_grad():
        exported = torch.export.export(
            model,
            (example_input(8).to("simdev"),),
            dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=1024)},),
        )
        torch._inductor.aoti_compile_and_package(exported, package_path=path)
        for batch in (1, 8, 100):  # what main.cpp should print
            numbers = model(example_input(batch).to("simdev"))[-1].tolist()
            print(f"batch {batch}:", " ".join(f"{number:.5f}" for number in numbers))


if __name__ == "__main__":
    main(sys.argv[1])
