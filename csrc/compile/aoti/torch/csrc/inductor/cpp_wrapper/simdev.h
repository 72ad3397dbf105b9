// What a module includes that torch.compile has generated for simdev in C++ (Inductor's option cpp_wrapper); Inductor finds
// it by the device's name.
#pragma once

#include <simdev_aoti.h>
#include <torch/csrc/inductor/cpp_wrapper/common.h>
#include <torch/csrc/stable/accelerator.h>
