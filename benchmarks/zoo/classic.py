"""Models of the zoo that are written here from torch.nn: a UNet, a tagger, a recommender, a graph network, ..."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import Workload, cross_entropy

# --- A diffusion UNet ---------------------------------------------------------------------------------------


class ResidualBlock(nn.Module):
    """Two convolutions with group norm; the time step's embedding is added between them."""

    def __init__(self, channels_in: int, channels: int, embedding: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, channels_in), nn.GroupNorm(8, channels)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.time = nn.Linear(embedding, channels)
        self.skip = nn.Conv2d(channels_in, channels, 1) if channels_in != channels else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(hidden)))


class SpatialAttention(nn.Module):
    """Self-attention over the pixels of a feature map."""

    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, 3, self.heads, channels // self.heads, height * width)
        q, k, v = qkv.transpose(-1, -2).unbind(1)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(x.shape)
        return x + self.out(attended)


class UNet(nn.Module):
    """Predicts the noise in an image at a time step, as in denoising diffusion (DDPM)."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        embedding = 4 * width
        widths = [width << level for level in range(levels)]
        self.frequencies = width // 2
        self.time = nn.Sequential(nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        down, shrink, grow, up = [], [], [], []
        for above, below in zip([width, *widths], widths):
            down.append(ResidualBlock(above, below, embedding))
            shrink.append(nn.Conv2d(below, below, 3, stride=2, padding=1))
            grow.append(nn.Conv2d(below, below, 3, padding=1))
            up.append(ResidualBlock(2 * below, above, embedding))
        self.down, self.shrink = nn.ModuleList(down), nn.ModuleList(shrink)
        self.grow, self.up = nn.ModuleList(reversed(grow)), nn.ModuleList(reversed(up))
        self.middle = ResidualBlock(widths[-1], widths[-1], embedding)
        self.attention = SpatialAttention(widths[-1])
        self.norm, self.last = nn.GroupNorm(8, width), nn.Conv2d(width, 3, 3, padding=1)

    def embed(self, steps: Tensor) -> Tensor:
        exponents = torch.arange(self.frequencies, device=steps.device) / self.frequencies
        angles = steps[:, None] * torch.exp(-math.log(10_000.0) * exponents)
        return self.time(torch.cat([angles.sin(), angles.cos()], dim=1))

    def forward(self, image: Tensor, steps: Tensor) -> Tensor:
        time = self.embed(steps)
        x, skips = self.first(image), []
        for block, shrink in zip(self.down, self.shrink):
            x = block(x, time)
            skips.append(x)
            x = shrink(x)
        x = self.attention(self.middle(x, time))
        for block, grow in zip(self.up, self.grow):
            x = grow(F.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = block(torch.cat([x, skips.pop()], dim=1), time)
        return self.last(F.silu(self.norm(x)))


def unet(small: bool) -> Workload:
    batch, size, width = (2, 16, 16) if small else (8, 64, 32)
    inputs = (torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,)))
    return Workload(UNet(width, 3), inputs, torch.randn(batch, 3, size, size), F.mse_loss)


# --- A tagger -----------------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """A label for each word of a sentence."""

    def __init__(self, words: int, labels: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, bidirectional=True, batch_first=True)
        self.label = nn.Linear(2 * width, labels)

    def forward(self, sentence: Tensor) -> Tensor:
        return self.label(self.lstm(self.embedding(sentence))[0])


def lstm(small: bool) -> Workload:
    batch, length, width = (2, 10, 32) if small else (64, 48, 160)
    words, labels = 10_000, 24
    sentence, target = torch.randint(0, words, (batch, length)), torch.randint(0, labels, (batch, length))
    return Workload(Tagger(words, labels, width), (sentence,), target, cross_entropy)


# --- A recommender ------------------------------------------------------------------------------------------


class Recommender(nn.Module):
    """DLRM's shape: categories by embedding bags, numbers by an MLP, then all pairwise products and an MLP."""

    def __init__(self, tables: int, rows: int, numbers: int, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(numbers, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())
        self.score = nn.Linear(256, 1)
        below = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("below", below[0] * (tables + 1) + below[1])

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        features = torch.stack([dense, *(bag(ids) for bag, ids in zip(self.bags, categories))], dim=1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1).index_select(1, self.below)
        return self.score(self.top(torch.cat([dense, products], dim=1))).squeeze(1)


def dlrm(small: bool) -> Workload:
    batch, rows, tables, bag, width = (8, 100, 3, 4, 16) if small else (8192, 5_000, 16, 8, 64)
    inputs = (torch.randn(batch, 13), torch.randint(0, rows, (tables, batch, bag)))
    clicked = torch.randint(0, 2, (batch,)).float()
    loss = F.binary_cross_entropy_with_logits
    return Workload(Recommender(tables, rows, 13, width), inputs, clicked, loss)


# --- A graph network ----------------------------------------------------------------------------------------


class GraphNetwork(nn.Module):
    """Messages along edges, their mean over each node's incoming edges by scatter-add (GraphSAGE)."""

    def __init__(self, features: int, width: int, classes: int, layers: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.others = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.last = nn.Linear(width, classes)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        x = F.relu(self.first(nodes))
        ones = torch.ones_like(target, dtype=x.dtype)
        degree = x.new_zeros(x.shape[0]).scatter_add(0, target, ones).clamp(min=1.0)
        for own, others, norm in zip(self.own, self.others, self.norms):
            messages = others(x).index_select(0, source)
            received = torch.zeros_like(x).scatter_add(0, target[:, None].expand_as(messages), messages)
            x = x + F.relu(norm(own(x) + received / degree[:, None]))
        return self.last(x)


def graph(small: bool) -> Workload:
    nodes, edges, width = (50, 200, 32) if small else (16_000, 120_000, 96)
    features, classes = 100, 40
    inputs = (torch.randn(nodes, features), torch.randint(0, nodes, (2, edges)))
    target = torch.randint(0, classes, (nodes,))
    return Workload(GraphNetwork(features, width, classes, layers=4), inputs, target, cross_entropy)


# --- MLP-Mixer ----------------------------------------------------------------------------------------------


def mlp(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class MixerBlock(nn.Module):
    """An MLP over the patches, then one over the channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.patches, self.channels = mlp(patches, width // 2), mlp(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer for image classification."""

    def __init__(self, size: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, kernel_size=16, stride=16)
        self.blocks = nn.Sequential(*(MixerBlock((size // 16) ** 2, width) for _ in range(layers)))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.embed(images).flatten(2).transpose(1, 2)
        return self.last(self.norm(self.blocks(patches)).mean(dim=1))


def mixer(small: bool) -> Workload:
    batch, size, width, layers = (2, 64, 64, 2) if small else (16, 224, 256, 6)
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, 100, (batch,))
    return Workload(Mixer(size, width, layers, 100), (images,), labels, cross_entropy)


# --- WaveNet ------------------------------------------------------------------------------------------------


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates; each layer adds to the output through its skip."""

    def __init__(self, width: int, layers: int, levels: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(layers))
        self.mixes = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.last = nn.Sequential(
            nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, levels, 1)
        )

    def forward(self, samples: Tensor) -> Tensor:
        x = self.first(samples)
        skipped = torch.zeros_like(x)
        for gate, mix in zip(self.gates, self.mixes):
            value, opened = gate(F.pad(x, (gate.dilation[0], 0))).chunk(2, dim=1)
            residual, skip = mix(torch.tanh(value) * torch.sigmoid(opened)).chunk(2, dim=1)
            x, skipped = x + residual, skipped + skip
        return self.last(skipped).transpose(1, 2)


def wavenet(small: bool) -> Workload:
    batch, length, width, layers = (1, 64, 16, 3) if small else (8, 4096, 64, 8)
    levels = 256
    samples, target = torch.randn(batch, 1, length), torch.randint(0, levels, (batch, length))
    return Workload(WaveNet(width, layers, levels), (samples,), target, cross_entropy)
