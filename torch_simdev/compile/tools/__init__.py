"""Instruments for torch.compile: backends and functions that show, count, time, change and check what passes through.

Each tool takes the place of a backend, or of torch.compile itself, and works on simdev, CPU and CUDA tensors.  The
stations that they look at, with an example for each tool: docs/compile.md.  Importing this package imports Dynamo.
"""

from .bisect import STATIONS, Bisection, Station, bisect
from .compose import compose
from .explain import Explanation, explain
from .graphs import Graph, GraphTool
from .handover import hand_over, torchscript
from .observer import Observer
from .profiling import Profiler
from .rewriter import Rewriter
from .statistics import GraphStatistics, Statistics, count_operators

__all__ = [
    "STATIONS",
    "Bisection",
    "Explanation",
    "Graph",
    "GraphStatistics",
    "GraphTool",
    "Observer",
    "Profiler",
    "Rewriter",
    "Station",
    "Statistics",
    "bisect",
    "compose",
    "count_operators",
    "explain",
    "hand_over",
    "torchscript",
]
