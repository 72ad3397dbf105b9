"""The model zoo: what a model of it is, and the table of all of them.

The models are real architectures with random weights, built without any download.  `vision.py` and `language.py` take
theirs from transformers; `classic.py` builds its own from torch.nn.  Nothing here measures: ../models.py does.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Workload:
    """A model with one batch: `loss(module(*inputs), target)` is what a training step differentiates."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    target: Tensor
    loss: Loss


@dataclass(frozen=True)
class Architecture:
    """An entry of the zoo: `build(small)` of its module makes the workload."""

    name: str
    module: str  # of this package
    describes: str
    from_transformers: bool = True
    # Factor on the gradients' tolerance.  Where an activation has a kink, above all behind a batch norm, rounding
    # tells on which side a value lies, and the gradient jumps.  In float64 ResNet-50's gradients on simdev equal the
    # CPU's exactly; in float32 one CPU thread, two, and simdev are all about 0.2 (of the largest element) from those.
    gradient_slack: float = 1.0

    def build(self, small: bool = False, seed: int = 0) -> Workload:
        """Returns the workload on the CPU, the same for the same seed; `small` is the size for tests.

        Raises ModuleNotFoundError if transformers is needed and not installed.
        """
        if self.from_transformers and importlib.util.find_spec("transformers") is None:
            raise ModuleNotFoundError(f"{self.name} needs transformers: pip install -r requirements-zoo.txt")
        builders = importlib.import_module(f"{__name__}.{self.module}")
        torch.manual_seed(seed)
        return getattr(builders, self.name)(small)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy over all leading dimensions."""
    return F.cross_entropy(logits.flatten(0, -2), target.flatten())


ARCHITECTURES = [
    Architecture("resnet", "vision", "ResNet-50: convolutions, batch norm", gradient_slack=500),
    Architecture("mobilenet", "vision", "MobileNet v2: depthwise convolutions", gradient_slack=500),
    Architecture("convnext", "vision", "ConvNeXt: 7x7 depthwise, layer norm, GELU"),
    Architecture("vit", "vision", "ViT: patches, attention"),
    Architecture("swin", "vision", "Swin: shifted windows (roll), relative position bias"),
    Architecture("bert", "language", "BERT: masked language model, padded batch"),
    Architecture("gpt2", "language", "GPT-2: causal attention, tied embeddings"),
    Architecture("llama", "language", "Llama: RMS norm, rotary embedding, grouped queries, SwiGLU"),
    Architecture("moe", "language", "Mixtral: a mixture of experts, top 2 of 8 by grouped matmul"),
    Architecture("t5", "language", "T5: encoder and decoder, relative position bias", gradient_slack=10),
    Architecture("whisper", "language", "Whisper: Conv1d over a spectrogram, encoder and decoder"),
    Architecture("mamba", "language", "Mamba-2: a state space model in chunks"),
    Architecture("unet", "classic", "diffusion UNet: group norm, SiLU, skips, attention", False),
    Architecture("lstm", "classic", "tagger: embedding, two bidirectional LSTM layers", False),
    Architecture("dlrm", "classic", "recommender after DLRM: embedding bags, pairwise products", False),
    Architecture("graph", "classic", "graph network: gather, scatter-add, mean over neighbours", False),
    Architecture("mixer", "classic", "MLP-Mixer: transposes, layer norm, GELU", False),
    Architecture("wavenet", "classic", "WaveNet: dilated causal Conv1d, gates, skips", False),
]
BY_NAME = {architecture.name: architecture for architecture in ARCHITECTURES}
