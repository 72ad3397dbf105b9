"""torch.compile for simdev: Inductor's compiler with simdev's kernels, launches and memory.

Lives here: when which part of the backend is registered.  Importing this package imports neither Dynamo nor Inductor,
whose imports cost seconds; each part is registered when PyTorch first asks for it:

- Dynamo being imported registers the device interface (device_interface.py), says how our functions are traced
  (tracing.py), and has backends initialised (patches.py);
- Inductor looking `Scheduling` up on `torch.simdev` registers the code generator (registration.py);
- `torch._inductor.compile_fx` being imported puts re-labelling for the CUDA driver in front of it (relabel.py), and has
  compiled graphs recorded (graph.py);
- `torch.compile(backend="simdev")` finds backend.py by entry point.

Instruments that show what happens on the way are in tools/.
"""

from __future__ import annotations

from ._import_hook import after_import

# What Inductor looks up on a device module.  It gets none of them: the look-up itself registers the code generator,
# together with the custom pass and the options that registration by attribute would leave out.
INDUCTOR_ATTRIBUTES = frozenset(
    {"Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen"}
)


def register_with_inductor() -> None:
    """Registers the code generator.  Imports Inductor if that has not happened; a second call does nothing."""
    from .registration import register

    register()


def _register_device_interface() -> None:
    from .device_interface import register

    register()


def _register_trace_rules() -> None:
    from .patches import make_compiled_optimizers_capturable
    from .tracing import register

    register()
    make_compiled_optimizers_capturable()


def _accept_flex_attention() -> None:
    from .patches import accept_flex_attention

    accept_flex_attention()


def _initialise_backends() -> None:
    from .patches import initialise_backends

    initialise_backends()


def _ask_again_for_the_current_device() -> None:
    from .patches import ask_again_for_the_current_device

    ask_again_for_the_current_device()


def _format_convolutions() -> None:
    from .patches import format_convolutions_as_the_kernels_do

    format_convolutions_as_the_kernels_do()


def _train_with_streams() -> None:
    from .patches import estimate_without_triton, wait_for_streams_in_forward_graphs

    estimate_without_triton()
    wait_for_streams_in_forward_graphs()


def _register_decompositions() -> None:
    from .decomposition import register

    register()


def _prepare_inductor() -> None:
    from .patches import record_graphs
    from .relabel import install

    install()
    record_graphs()


def install() -> None:
    """Arranges that PyTorch's compiler learns of the device when it is imported, or at once if it already was."""
    after_import(
        {
            "torch._dynamo.device_interface": _register_device_interface,
            "torch._dynamo.eval_frame": _initialise_backends,
            "torch._dynamo.trace_rules": _register_trace_rules,
            "torch._functorch._aot_autograd.streams": _train_with_streams,
            "torch._inductor.compile_fx": _prepare_inductor,
            "torch._inductor.decomposition": _register_decompositions,
            "torch._subclasses.fake_impls": _format_convolutions,
            "torch._subclasses.fake_tensor": _ask_again_for_the_current_device,
            "torch.nn.attention.flex_attention": _accept_flex_attention,
        }
    )
