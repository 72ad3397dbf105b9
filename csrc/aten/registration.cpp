// Which tier serves an operator: decided here, once, by walking PyTorch's registry when the library is loaded.
//
// Operators with a kernel of their own (TORCH_LIBRARY_IMPL(aten, PrivateUse1, ...) in this directory) are left alone, and so
// are compositions of other operators.  Every other operator for which ATen has a CPU kernel gets a boxed one.
#include "aten/registration.h"

#include "aten/division.h"
#include "aten/fallback.h"
#include "aten/launched.h"
#include "aten/matrix_product.h"
#include "aten/nested.h"
#include "aten/placement.h"
#include "runtime/device.h"

#include <ATen/core/enum_tag.h>

#include <torch/library.h>

#include <algorithm>
#include <string_view>

namespace simdev {

namespace {

// LAPACK: iterative, serial, and the host must see its `info` to raise the error.  And how many elements a sparse tensor has
// is known when they have been counted.
constexpr std::string_view kHostOnlyPrefixes[] = {
    "aten::_to_sparse",
    "aten::_linalg_",
    "aten::linalg_",
    "aten::cholesky",
    "aten::_cholesky",
    "aten::geqrf",
    "aten::ormqr",
    "aten::triangular_solve",
};
// Of those, plain arithmetic that is launched like any other.
constexpr std::string_view kLaunchedAnyway[] = {
    "aten::linalg_vector_norm",
    "aten::linalg_cross",
    "aten::linalg_matrix_exp",
    "aten::linalg__powsum",
    "aten::linalg_solve_triangular",
};
// CUDA accepts host tensors as indices into device tensors.
constexpr std::string_view kTakesHostTensors[] = {
    "aten::index",
    "aten::_index_put_impl_",
};

// Their Meta kernels tell other output shapes, strides or lazy bits than the CPU's kernels have, or are missing; but what
// they return depends on the arguments' metadata alone.
constexpr std::string_view kLearned[] = {
    "aten::_add_relu",
    "aten::_aminmax",
    "aten::_ctc_loss_backward",
    "aten::_dirichlet_grad",
    "aten::_fake_quantize_learnable_per_channel_affine",
    "aten::_fake_quantize_learnable_per_channel_affine_backward",
    "aten::_fake_quantize_learnable_per_tensor_affine",
    "aten::_fake_quantize_learnable_per_tensor_affine_backward",
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "aten::_logcumsumexp",
    "aten::_masked_softmax",
    "aten::_masked_softmax_backward",
    "aten::_native_multi_head_attention",
    "aten::_standard_gamma_grad",
    "aten::_transform_bias_rescale_qkv",
    "aten::fake_quantize_per_channel_affine_cachemask",
    "aten::fake_quantize_per_tensor_affine_cachemask",
    "aten::floor_divide",
    "aten::fractional_max_pool3d_backward",
    "aten::glu_backward_jvp",
    "aten::glu_jvp",
    "aten::mish_backward",
    "aten::multi_margin_loss_backward",
    "aten::multilabel_margin_loss_backward",
    "aten::native_channel_shuffle",
    "aten::native_dropout_backward",
    "aten::reflection_pad2d",
    "aten::reflection_pad2d_backward",
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
    "aten::_histogramdd_bin_edges",
    "aten::_histogramdd_from_bin_cts",
    "aten::_histogramdd_from_bin_tensors",
    "aten::histogram",
    "aten::_fft_r2c",
    "aten::_fft_c2r",
    "aten::_fft_c2c",
    "aten::max_unpool2d",
    "aten::nonzero_static",
    "aten::multilabel_margin_loss_forward",
    "aten::dot",
    "aten::mkldnn_rnn_layer",
    "aten::vdot",
    "aten::_batch_norm_with_update",
    "aten::_native_batch_norm_legit",
};

constexpr std::string_view kMatrixProducts[] = {
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::addbmm",
    "aten::_addmm_activation",
};

// Kernels that are asked before ATen's, by operator with overload.
struct Replacement {
  std::string_view op;
  bool (*run)(c10::ArrayRef<c10::IValue> arguments);
};
constexpr Replacement kReplacements[] = {
    {"aten::mm.out", runMatrixProduct},
    {"aten::bmm.out", runMatrixProduct},
    {"aten::addmm.out", runMatrixProduct},
    {"aten::baddbmm.out", runMatrixProduct},
    {"aten::div.out_mode", runTruncatingDivision},
};

// Compositions that follow pointers into their arguments on the host, whatever the device.
constexpr std::string_view kReadsMemory[] = {
    "aten::_grid_sampler_2d_cpu_fallback",
    "aten::_grid_sampler_2d_cpu_fallback_backward",
    "aten::_rowwise_prune",
    "aten::_saturate_weight_to_fp16",
    "aten::_sobol_engine_draw",
    "aten::_sobol_engine_ff_",
    "aten::_sobol_engine_initialize_state_",
    "aten::_sobol_engine_scramble_",
    "aten::choose_qparams_optimized",
};

// A branch that no processor foresees, and a place in memory for each element, count as arithmetic.
constexpr std::string_view kComputeBound[] = {
    "aten::_cdist_forward",
    "aten::_cdist_backward",
    "aten::grid_sampler_2d",
    "aten::grid_sampler_3d",
    "aten::index",
    "aten::masked_fill_",
    "aten::masked_select",
    "aten::nonzero",
};

// Their shape functions give the result two shapes one after the other, and the out= overload warns of that.
constexpr std::string_view kReshapesResult[] = {"aten::mse_loss", "aten::smooth_l1_loss"};

// Products with weights that are quantized and packed on the host; what packs them reads memory, whatever the device.
constexpr std::string_view kPackedPrefix = "aten::fbgemm_";

constexpr std::string_view kMakesQuantized[] = {
    "aten::_empty_affine_quantized",
    "aten::_empty_per_channel_affine_quantized",
    "aten::_make_per_channel_quantized_tensor",
    "aten::_make_per_tensor_quantized_tensor",
    "aten::quantize_per_channel",
    "aten::quantize_per_tensor",
    "aten::quantize_per_tensor_dynamic",
};

constexpr std::string_view kResizesSilently[] = {
    "aten::addbmm",
    "aten::linspace",
    "aten::logspace",
    "aten::log_sigmoid_forward",
    "aten::eye",
    "aten::narrow_copy",
};

template <size_t N>
bool contains(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool isHostOnly(std::string_view name) {
  return !contains(kLaunchedAnyway, name) &&
         std::any_of(
             std::begin(kHostOnlyPrefixes), std::end(kHostOnlyPrefixes), [&](std::string_view prefix) {
               return name.starts_with(prefix);
             });
}

bool isQuantized(std::string_view name) {
  return contains(kMakesQuantized, name) || name.starts_with(kPackedPrefix);
}

// One launch that loops over the tensors on the device beats one launch a tensor.
bool isForeach(std::string_view name) {
  return name.starts_with("aten::_foreach_");
}

// ATen defines it by a C++ shape function and an out= kernel, and that is how it is run.
bool isStructured(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
         !contains(kReshapesResult, op.operator_name().name);
}

bool isDataDependent(const OperatorPlan& plan) {
  const auto& tags = plan.op.getTags();
  return !plan.returnsOnlyTensors ||
         (!isStructured(plan.op) && std::any_of(tags.begin(), tags.end(), [](at::Tag tag) {
           return tag == at::Tag::data_dependent_output || tag == at::Tag::dynamic_output_shape;
         }));
}

std::shared_ptr<OperatorPlan> makePlan(const c10::OperatorHandle& op) {
  auto plan = std::make_shared<OperatorPlan>(op);
  plan->hostOnly = isHostOnly(op.operator_name().name) || contains(kReadsMemory, op.operator_name().name);
  plan->dataDependent = !plan->hostOnly && isDataDependent(*plan);
  plan->learned = contains(kLearned, op.operator_name().name) && plan->hasFreshOutputs;
  plan->takesHostTensors = contains(kTakesHostTensors, op.operator_name().name);
  plan->isMatrixProduct = contains(kMatrixProducts, op.operator_name().name);
  for (const Replacement& replacement : kReplacements) {
    if (replacement.op == plan->name) {
      plan->replacement = replacement.run;
    }
  }
  plan->computeBound = contains(kComputeBound, op.operator_name().name);
  plan->resizesSilently = contains(kResizesSilently, op.operator_name().name);
  plan->indexChecks = indexChecks(op.operator_name().name);
  plan->takesHostScalarsInLists = isForeach(op.operator_name().name);
  return plan;
}

bool isServedByBoxedKernel(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  if (contains(kReadsMemory, op.operator_name().name) || isQuantized(op.operator_name().name)) {
    return true;
  }
  const bool hasKernel = op.hasKernelForDispatchKey(DispatchKey::CPU) ||
                         (isForeach(op.operator_name().name) &&
                          op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd));
  if (!hasKernel || op.hasKernelForDispatchKey(DispatchKey::PrivateUse1)) {
    return false;
  }
  // A kernel of ours would hide the composition that autograd differentiates through.
  return !op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::Autograd);
}

std::map<std::string, const char*>& boxed() {
  static auto* operators = new std::map<std::string, const char*>;
  return *operators;
}

bool alwaysRunsOnHost(const OperatorPlan& plan) {
  const bool inferable = plan.learned || !plan.hasFreshOutputs ||
                         plan.op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta);
  return plan.hostOnly || !inferable;
}

void refuseQuantized(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet /*keys*/,
    torch::jit::Stack* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "'",
      c10::toString(op.operator_name()),
      "': there are no quantized tensors on simdev. Quantize on the CPU, or use the fake_quantize "
      "operators.");
}

// Serves an operator's dense tensors, unless it has a kernel of ours or is a composition.
void registerDenseKernel(torch::Library& library, const c10::OperatorHandle& op) {
  if (!isServedByBoxedKernel(op)) {
    return;
  }
  auto plan = makePlan(op);
  if (plan->isView) {
    return;
  }
  if (isQuantized(op.operator_name().name)) {
    boxed()[plan->name] = "refused";
    library.impl(plan->name, torch::CppFunction::makeFromBoxedFunction<&refuseQuantized>());
    return;
  }
  boxed()[plan->name] = plan->dataDependent       ? "synchronous"
                        : alwaysRunsOnHost(*plan) ? "host fallback"
                                                  : "launched";
  library.impl(
      plan->name,
      isStructured(op) ? torch::CppFunction::makeFromBoxedFunctor(std::make_unique<StructuredKernel>())
                       : torch::CppFunction::makeFromBoxedFunctor(std::make_unique<LaunchedKernel>(plan)));
}

// An operator that has a kernel for the CPU's tensors of a sparse layout and none of ours runs on the host.
void registerSparseKernel(
    torch::Library& library,
    const c10::OperatorHandle& op,
    c10::DispatchKey hostKey,
    c10::DispatchKey key) {
  if (!op.hasKernelForDispatchKey(hostKey) || op.hasKernelForDispatchKey(key)) {
    return;
  }
  auto plan = makePlan(op);
  if (!plan->isView) {
    if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      boxed()[plan->name] = "host fallback";
    }
    library.impl(plan->name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<SparseKernel>(plan)));
  }
}

void registerAll() {
  using c10::DispatchKey;
  installPlacementAllocator();
  const auto implement = [](const char* space, DispatchKey key) {
    return new torch::Library(torch::Library::IMPL, space, key, __FILE__, __LINE__); // for the process's life
  };
  torch::Library* const dense = implement("aten", DispatchKey::PrivateUse1);
  torch::Library* const sparse = implement("aten", DispatchKey::SparsePrivateUse1);
  torch::Library* const compressed = implement("aten", DispatchKey::SparseCsrPrivateUse1);
  torch::Library* const nested = implement("aten", DispatchKey::NestedTensorPrivateUse1);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (name.getNamespace() == "aten" && op.has_value()) {
      registerDenseKernel(*dense, *op);
      registerSparseKernel(*sparse, *op, DispatchKey::SparseCPU, DispatchKey::SparsePrivateUse1);
      registerSparseKernel(*compressed, *op, DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrPrivateUse1);
      registerNestedKernel(*nested, *op);
    }
  }
  implement("_", DispatchKey::PrivateUse1)
      ->fallback(torch::CppFunction::makeFromBoxedFunction<&unregisteredOperator>());
  implement("_", DispatchKey::QuantizedPrivateUse1)
      ->fallback(torch::CppFunction::makeFromBoxedFunction<&refuseQuantized>());
}

[[maybe_unused]] const bool registered = (onInitialization(&registerBoxedKernels), true);

} // namespace

const std::map<std::string, const char*>& boxedOperators() {
  return boxed();
}

void registerBoxedKernels() {
  static const bool done = (registerAll(), true);
  static_cast<void>(done);
}

} // namespace simdev
