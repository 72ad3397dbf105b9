"""Device time of each operator, forward and backward, by nodes that record events around it."""

import torch

from torch_simdev.compile.tools import Profiler

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3),
    torch.nn.BatchNorm2d(16),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.LazyLinear(10),
).to("simdev")
images = torch.randn(32, 3, 32, 32, device="simdev")
model(images)  # gives the lazy layer its shape

profiler = Profiler()
compiled = torch.compile(model, backend=profiler)
compiled(images).sum().backward()
profiler.reset()  # the first call starts workers and fills caches
for _ in range(3):
    compiled(images).sum().backward()

print(profiler)
