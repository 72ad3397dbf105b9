// Compiling a loop for several x86-64 levels, of which the best is chosen when the library is loaded.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SIMDEV_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define SIMDEV_CLONES
#endif
