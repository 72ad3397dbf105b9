"""`torch.compile(..., backend="simdev")`: Inductor under our name, with our options.

Lives here: what `mode` and `options` mean.  Does not live here: the code generator, which plain `torch.compile(f)` uses
as well.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import list_mode_options
from torch._inductor.compile_fx import compile_fx, compile_fx_inner

from . import config, register_with_inductor


def split_options(mode: str | None, options: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options of this backend and those of Inductor, of a mode and of `options`.

    Raises RuntimeError for a mode or an option that neither knows, and for an option of ours of another type.
    """
    own: dict[str, Any] = {}
    inductors: dict[str, Any] = {}
    if mode is not None and mode != "default":
        inductors.update(list_mode_options(mode))
    for key, value in (options or {}).items():
        name = key.replace("-", "_")
        if hasattr(config, name):
            _expect_type(key, value, type(getattr(config, name)))
            own[name] = value
        elif hasattr(inductor_config, name) or "." in name:
            inductors[name] = value
        else:
            known = ", ".join(sorted(config.get_config_copy()))  # type: ignore[attr-defined]
            raise RuntimeError(
                f"Unexpected optimization option {key}: the simdev backend knows {known}, and those of "
                "torch._inductor.list_options()"
            )
    return own, inductors


def _expect_type(key: str, value: Any, expected: type) -> None:
    if not isinstance(value, expected):
        raise RuntimeError(
            f"Unexpected type of attr {key}, got {type(value).__name__} should be {expected.__name__}"
        )


@contextlib.contextmanager
def _patched(own: dict[str, Any], inductors: dict[str, Any]) -> Iterator[None]:
    with config.patch(own), inductor_config.patch(inductors):  # type: ignore[attr-defined]
        yield


def simdev(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    inner_compile: Callable[..., Any] = compile_fx_inner,
) -> Callable[..., Any]:
    """Compiles a graph that Dynamo has captured, for the devices that its tensors are on.

    Arguments:
        gm, example_inputs: from Dynamo.
        mode: "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", as in torch.compile.
        options: of `torch_simdev.compile.config` and of `torch._inductor.config`; beside them "fallback", a list of
            backends that are tried in order where this one does not compile a graph (`tools.compose`).
        inner_compile: compiles ATen graphs, in place of Inductor's own function and with its arguments.

    Returns the compiled function.  Raises RuntimeError for an unknown mode or option, or one of the wrong type.
    """
    if options and "fallback" in options:
        from .tools import compose

        _expect_type("fallback", options["fallback"], list)
        others = {key: value for key, value in options.items() if key != "fallback"}
        first = functools.partial(simdev, mode=mode, options=others, inner_compile=inner_compile)
        return compose(functools.update_wrapper(first, simdev), *options["fallback"])(gm, example_inputs)
    own, inductors = split_options(mode, options)

    # The options hold while the graph is captured and partitioned, since they are part of the keys of caches, and
    # whenever Inductor is called: it may compile the backward graph much later.
    @functools.wraps(compile_fx_inner)
    def compile_with_options(*args: Any, **kwargs: Any) -> Any:
        with _patched(own, inductors):
            return inner_compile(*args, **kwargs)

    with _patched(own, inductors):
        return compile_fx(gm, example_inputs, inner_compile=compile_with_options)


# Called once per process by torch.compile(backend="simdev") itself, so that an installation whose code generator cannot
# be registered says so there, not in the middle of the first call.
simdev._dynamo_backend_init = register_with_inductor  # type: ignore[attr-defined]
