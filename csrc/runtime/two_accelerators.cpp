// Lets autograd work on CUDA tensors in a process that has loaded us.
//
// PyTorch knows one accelerator per process, at::accelerator::getAccelerator(), and that is the out-of-tree device once there
// is one.  Since 2.9 its autograd engine takes the stream of a node from tensors of that device alone, and fails an
// internal assertion on nodes whose tensors are on another accelerator: the first backward pass of a plain CUDA tensor.
// Here the engine's question is answered by the node that it is evaluating, and before the first one by whoever starts the
// backward pass (torch_simdev/compat.py).
//
// The function is not meant to be replaced.  Libraries call it through their table of imported functions, whose entries are
// redirected.  Nothing is touched in a PyTorch without CUDA.
#include "runtime/two_accelerators.h"

#include "runtime/device.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/function.h>

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

namespace simdev {

namespace {

using Accelerator = std::optional<c10::DeviceType>;

constexpr std::string_view kFunction =
    "_ZN2at11accelerator14getAcceleratorEb"; // at::accelerator::getAccelerator(bool)

bool isAccelerator(c10::DeviceType type) {
  return type == c10::DeviceType::CUDA || type == kDeviceType;
}

// The type of accelerator that a node's inputs are on.
Accelerator typeOf(torch::autograd::Node& node) {
  for (uint32_t i = 0; i < node.num_inputs(); ++i) {
    const c10::DeviceType type = node.input_metadata(i).device().type();
    if (isAccelerator(type)) {
      return type;
    }
  }
  return std::nullopt;
}

// Of a root, which has no inputs, that of the nodes after it.
Accelerator acceleratorOf(torch::autograd::Node& node) {
  if (const Accelerator type = typeOf(node)) {
    return type;
  }
  for (const torch::autograd::Edge& edge : node.next_edges()) {
    if (edge.is_valid()) {
      if (const Accelerator type = typeOf(*edge.function)) {
        return type;
      }
    }
  }
  return std::nullopt;
}

// Set in the thread that runs a backward pass from CUDA tensors, which prepares it before any node is evaluated.
thread_local bool isCudaBackward = false;

Accelerator getAcceleratorOfNode(bool checked) {
  if (const auto node = torch::autograd::get_current_node()) {
    if (const Accelerator type = acceleratorOf(*node)) {
      return type;
    }
  }
  if (isCudaBackward) {
    return c10::DeviceType::CUDA;
  }
  return at::accelerator::getAccelerator(checked); // from here it is the original
}

struct Search {
  bool redirect;
  int found = 0;
};

void visitEntry(void** entry, Search& search) {
  ++search.found;
  if (search.redirect) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    auto* const start = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(entry) & ~(page - 1));
    if (mprotect(start, 2 * page, PROT_READ | PROT_WRITE) == 0) {
      __atomic_store_n(entry, reinterpret_cast<void*>(&getAcceleratorOfNode), __ATOMIC_RELEASE);
    }
  }
}

// Whether this code is the library's: getAcceleratorOfNode() needs the original in its own table.
bool isOurs(const dl_phdr_info& library) {
  Dl_info ours;
  return dladdr(reinterpret_cast<const void*>(&getAcceleratorOfNode), &ours) != 0 &&
         reinterpret_cast<uintptr_t>(ours.dli_fbase) == library.dlpi_addr;
}

int visitLibrary(dl_phdr_info* library, size_t, void* data) {
  if (library->dlpi_name == nullptr || std::strstr(library->dlpi_name, "/libtorch_") == nullptr ||
      isOurs(*library)) {
    return 0;
  }
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    if (library->dlpi_phdr[i].p_type == PT_DYNAMIC) {
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
    }
  }
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  struct Table {
    const ElfW(Rela) * entries = nullptr;
    size_t bytes = 0;
  } tables[2]; // imported functions, and other relocations
  for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
    const auto address = dynamic->d_un.d_ptr < library->dlpi_addr ? library->dlpi_addr + dynamic->d_un.d_ptr
                                                                  : dynamic->d_un.d_ptr;
    switch (dynamic->d_tag) {
      case DT_SYMTAB:
        symbols = reinterpret_cast<const ElfW(Sym)*>(address);
        break;
      case DT_STRTAB:
        names = reinterpret_cast<const char*>(address);
        break;
      case DT_JMPREL:
        tables[0].entries = reinterpret_cast<const ElfW(Rela)*>(address);
        break;
      case DT_PLTRELSZ:
        tables[0].bytes = dynamic->d_un.d_val;
        break;
      case DT_RELA:
        tables[1].entries = reinterpret_cast<const ElfW(Rela)*>(address);
        break;
      case DT_RELASZ:
        tables[1].bytes = dynamic->d_un.d_val;
        break;
      default:
        break;
    }
  }
  if (symbols == nullptr || names == nullptr) {
    return 0;
  }
  for (const Table& table : tables) {
    for (size_t i = 0; table.entries != nullptr && i < table.bytes / sizeof(ElfW(Rela)); ++i) {
      const ElfW(Rela) & entry = table.entries[i];
      const size_t symbol = ELF64_R_SYM(entry.r_info);
      if (symbol != 0 && kFunction == names + symbols[symbol].st_name) {
        visitEntry(
            reinterpret_cast<void**>(library->dlpi_addr + entry.r_offset), *static_cast<Search*>(data));
      }
    }
  }
  return 0;
}

} // namespace

int findAcceleratorImports(bool redirect) {
  Search search{redirect};
  dl_iterate_phdr(&visitLibrary, &search);
  return search.found;
}

bool setBackwardAccelerator(bool isCuda) {
  return std::exchange(isCudaBackward, isCuda);
}

[[maybe_unused]] static const bool redirected = [] {
  if (c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    findAcceleratorImports(/*redirect=*/true);
  }
  return true;
}();

} // namespace simdev
