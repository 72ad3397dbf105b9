// What C++ that AOTInductor has generated for simdev calls: launches, guards and operators, as a C interface of
// libtorch_simdev.so and the few classes of generated code over it.
//
// Functions follow PyTorch's own C interface (aoti_torch/c/shim.h): they return a code, results go through the last
// argument, and an AtenTensorHandle stays its owner's.  They keep their signatures, since packages built against them are
// files that outlive a build.  Does not live here: the memory, events and weights of AOTInductor's runtime
// (cuda_runtime_api.h beside this).
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>

extern "C" {

// What the calling thread's last call that failed has said.
AOTI_TORCH_EXPORT const char* aoti_torch_simdev_error_string();

// --- Kernels --------------------------------------------------------------------------------------------------

struct AOTISimdevKernelOpaque;
using AOTISimdevKernelHandle = AOTISimdevKernelOpaque*;

// `entry` is the address of what SIMDEV_KERNEL_ENTRY defines, and `signature` a letter for each argument (compiled_kernel.h).
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_create_kernel(
    void* entry,
    const char* name,
    const char* signature,
    AOTISimdevKernelHandle* ret_kernel);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_delete_kernel(AOTISimdevKernelHandle kernel);
// Runs the kernel on the current stream of its tensors' device.  An argument is 8 bytes: the handle of a tensor, or
// the bytes of a number.
AOTI_TORCH_EXPORT AOTITorchError
aoti_torch_simdev_launch_kernel(AOTISimdevKernelHandle kernel, const uint64_t* arguments, size_t count);

// --- Streams, memory, events ----------------------------------------------------------------------------------

struct AOTISimdevStreamGuardOpaque;
using AOTISimdevStreamGuardHandle = AOTISimdevStreamGuardOpaque*;

// Makes the device current, and the stream with this native handle on it; a null stream leaves the stream as it is.
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_create_stream_guard(
    void* stream,
    int32_t device_index,
    AOTISimdevStreamGuardHandle* ret_guard);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_delete_stream_guard(AOTISimdevStreamGuardHandle guard);

AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_get_device(int32_t* ret_device_index);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_set_device(int32_t device_index);
// On the current device.
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_malloc(uint64_t bytes, void** ret_pointer);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_free(void* pointer);
// To device memory, from the host's or the device's; complete when it returns.
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_memcpy(void* dst, const void* src, uint64_t bytes);

struct AOTISimdevEventOpaque;
using AOTISimdevEventHandle = AOTISimdevEventOpaque*;

AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_create_event(AOTISimdevEventHandle* ret_event);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_delete_event(AOTISimdevEventHandle event);
// A null stream is the current one.
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_record_event(AOTISimdevEventHandle event, void* stream);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_query_event(AOTISimdevEventHandle event, bool* ret_done);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_synchronize_event(AOTISimdevEventHandle event);

// --- Operators that generated code calls by a function of the device's name ------------------------------------------

AOTI_TORCH_EXPORT AOTITorchError
aoti_torch_simdev_mm_out(AtenTensorHandle out, AtenTensorHandle self, AtenTensorHandle mat2);
AOTI_TORCH_EXPORT AOTITorchError
aoti_torch_simdev__int_mm_out(AtenTensorHandle out, AtenTensorHandle self, AtenTensorHandle mat2);
AOTI_TORCH_EXPORT AOTITorchError
aoti_torch_simdev_bmm_out(AtenTensorHandle out, AtenTensorHandle self, AtenTensorHandle mat2);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_addmm_out(
    AtenTensorHandle out,
    AtenTensorHandle self,
    AtenTensorHandle mat1,
    AtenTensorHandle mat2,
    double beta,
    double alpha);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_baddbmm_out(
    AtenTensorHandle out,
    AtenTensorHandle self,
    AtenTensorHandle batch1,
    AtenTensorHandle batch2,
    double beta,
    double alpha);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_convolution(
    AtenTensorHandle input,
    AtenTensorHandle weight,
    AtenTensorHandle* bias, // null: none
    const int64_t* stride,
    int64_t stride_len,
    const int64_t* padding,
    int64_t padding_len,
    const int64_t* dilation,
    int64_t dilation_len,
    int32_t transposed,
    const int64_t* output_padding,
    int64_t output_padding_len,
    int64_t groups,
    AtenTensorHandle* ret_output);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_mkldnn_rnn_layer(
    AtenTensorHandle input,
    AtenTensorHandle weight_ih,
    AtenTensorHandle weight_hh,
    AtenTensorHandle bias_ih,
    AtenTensorHandle bias_hh,
    AtenTensorHandle hx,
    AtenTensorHandle cx,
    int32_t reverse,
    const int64_t* batch_sizes,
    int64_t batch_sizes_len,
    int64_t mode,
    int64_t hidden_size,
    int64_t num_layers,
    int32_t has_biases,
    int32_t bidirectional,
    int32_t batch_first,
    int32_t train,
    AtenTensorHandle* ret_output,
    AtenTensorHandle* ret_hy,
    AtenTensorHandle* ret_cy,
    AtenTensorHandle* ret_workspace);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_randint_low_out(
    AtenTensorHandle out,
    int64_t low,
    int64_t high,
    const int64_t* size,
    int64_t size_len);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_scatter_src_out(
    AtenTensorHandle out,
    AtenTensorHandle self,
    int64_t dim,
    AtenTensorHandle index,
    AtenTensorHandle src);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_scatter_value_out(
    AtenTensorHandle out,
    AtenTensorHandle self,
    int64_t dim,
    AtenTensorHandle index,
    double value);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev_scatter_reduce_two_out(
    AtenTensorHandle out,
    AtenTensorHandle self,
    int64_t dim,
    AtenTensorHandle index,
    AtenTensorHandle src,
    const char* reduce,
    int32_t include_self);
// Results that are not asked for are null.
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_simdev__scaled_dot_product_fused_attention_overrideable(
    AtenTensorHandle query,
    AtenTensorHandle key,
    AtenTensorHandle value,
    AtenTensorHandle* attn_bias, // null: none
    double dropout_p,
    int32_t is_causal,
    int32_t return_debug_mask,
    double* scale, // null: by the head size
    AtenTensorHandle* ret_output,
    AtenTensorHandle* ret_logsumexp,
    AtenTensorHandle* ret_cum_seq_q,
    AtenTensorHandle* ret_cum_seq_k,
    int64_t* ret_max_q,
    int64_t* ret_max_k,
    AtenTensorHandle* ret_philox_seed,
    AtenTensorHandle* ret_philox_offset,
    AtenTensorHandle* ret_debug_attn_mask);
AOTI_TORCH_EXPORT AOTITorchError
aoti_torch_simdev_view_dtype(AtenTensorHandle self, int32_t dtype, AtenTensorHandle* ret_view);

} // extern "C"

// As PyTorch's AOTI_TORCH_ERROR_CODE_CHECK, with the message.
#define AOTI_SIMDEV_CHECK(call)                                 \
  if ((call) != AOTI_TORCH_SUCCESS) {                           \
    throw std::runtime_error(aoti_torch_simdev_error_string()); \
  }

// A kernel of the package.  Generated code calls it with the wrappers of tensor handles and with numbers.
class AOTISimdevKernel {
 public:
  AOTISimdevKernel(void (*entry)(const void*, const void*), const char* name, const char* signature) {
    AOTI_SIMDEV_CHECK(
        aoti_torch_simdev_create_kernel(reinterpret_cast<void*>(entry), name, signature, &kernel_));
  }
  ~AOTISimdevKernel() { aoti_torch_simdev_delete_kernel(kernel_); }
  AOTISimdevKernel(const AOTISimdevKernel&) = delete;
  AOTISimdevKernel& operator=(const AOTISimdevKernel&) = delete;

  template <typename... Arguments>
  void operator()(const Arguments&... arguments) const {
    const uint64_t packed[] = {pack(arguments)...};
    AOTI_SIMDEV_CHECK(aoti_torch_simdev_launch_kernel(kernel_, packed, sizeof...(arguments)));
  }

 private:
  template <typename Argument>
  static uint64_t pack(const Argument& argument) {
    if constexpr (std::is_arithmetic_v<Argument>) {
      uint64_t bytes = 0;
      std::memcpy(&bytes, &argument, sizeof argument);
      return bytes;
    } else {
      return reinterpret_cast<uint64_t>(static_cast<AtenTensorHandle>(argument));
    }
  }

  AOTISimdevKernelHandle kernel_ = nullptr;
};

class AOTISimdevStreamGuard {
 public:
  AOTISimdevStreamGuard(void* stream, int32_t device_index) {
    AOTI_SIMDEV_CHECK(aoti_torch_simdev_create_stream_guard(stream, device_index, &guard_));
  }
  ~AOTISimdevStreamGuard() { aoti_torch_simdev_delete_stream_guard(guard_); }
  AOTISimdevStreamGuard(const AOTISimdevStreamGuard&) = delete;
  AOTISimdevStreamGuard& operator=(const AOTISimdevStreamGuard&) = delete;

 private:
  AOTISimdevStreamGuardHandle guard_ = nullptr;
};
