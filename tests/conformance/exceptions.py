"""What is known to differ from the CPU, one line each with the reason; none is a wrong value."""

from __future__ import annotations

_ACCUMULATION = "chooses its accumulation dtype by device: on the CPU alone it accumulates in the input's"
_CONTIGUOUS = "an empty out= gets contiguous strides, as on CUDA"

# (operator, check) or (operator, dtype): reason
EXCEPTIONS = {
    ("narrow_copy", "errors"): "IndexError, as on CUDA; the CPU's own kernel raises RuntimeError",
    ("fft.ifft", "out"): _CONTIGUOUS,
    ("fft.ihfft", "out"): _CONTIGUOUS,
    ("nn.functional.linear_cross_entropy.chunked", "bfloat16"): _ACCUMULATION,
    ("nn.functional.linear_cross_entropy.chunked", "float16"): _ACCUMULATION,
    ("nn.functional.linear_cross_entropy.chunked_none", "bfloat16"): _ACCUMULATION,
    ("nn.functional.linear_cross_entropy.chunked_none", "float16"): _ACCUMULATION,
}
