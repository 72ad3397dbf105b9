"""Image classifiers of the zoo, as transformers implements them, with random weights."""

from __future__ import annotations

import torch
import transformers as hf
from torch import Tensor, nn

from . import Workload, cross_entropy

CLASSES = 100


class Classifier(nn.Module):
    """Images to logits, without the output object around them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images, return_dict=False)[0]


def classify(model: type[nn.Module], config: object, batch: int, size: int) -> Workload:
    module = Classifier(model(config))
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, CLASSES, (batch,))
    return Workload(module, (images,), labels, cross_entropy)


def resnet(small: bool) -> Workload:
    depths = [1, 1, 1, 1] if small else [3, 4, 6, 3]
    config = hf.ResNetConfig(depths=depths, num_labels=CLASSES)
    return classify(hf.ResNetForImageClassification, config, 4 if small else 8, 96 if small else 224)


def mobilenet(small: bool) -> Workload:
    config = hf.MobileNetV2Config(
        num_labels=CLASSES, classifier_dropout_prob=0.0, depth_multiplier=0.5 if small else 1.0
    )
    return classify(hf.MobileNetV2ForImageClassification, config, 4 if small else 16, 96 if small else 224)


def convnext(small: bool) -> Workload:
    sizes = (
        {"depths": [1, 1, 2, 1], "hidden_sizes": [48, 96, 192, 384]} if small else {"depths": [2, 2, 6, 2]}
    )
    config = hf.ConvNextConfig(num_labels=CLASSES, **sizes)
    return classify(hf.ConvNextForImageClassification, config, 2 if small else 8, 64 if small else 224)


def vit(small: bool) -> Workload:
    size, layers = (64, 2) if small else (224, 6)
    config = hf.ViTConfig(
        hidden_size=384,
        num_hidden_layers=layers,
        num_attention_heads=6,
        intermediate_size=1536,
        image_size=size,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=CLASSES,
    )
    return classify(hf.ViTForImageClassification, config, 2 if small else 16, size)


def swin(small: bool) -> Workload:
    size, depths = (112, [1, 2]) if small else (224, [2, 2, 4])
    config = hf.SwinConfig(
        image_size=size,
        embed_dim=48 if small else 64,
        depths=depths,
        num_heads=[2, 4, 8][: len(depths)],
        drop_path_rate=0.0,
        num_labels=CLASSES,
    )
    return classify(hf.SwinForImageClassification, config, 2 if small else 8, size)
