// What every instruction set provides: a kernel for each of ops.inc. module.cpp picks a set at import.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coding/cpu.h"
#include "gennorm/cpu.h"
#include "native/formats.h"
#include "sign_vote/cpu.h"
#include "thc/cpu.h"

namespace laconic {

template <class Function> using Signature = Function;

struct Kernels {
#define LACONIC_OP(name, signature, ...) Signature<signature>* name;
#include "ops.inc"
};

namespace portable { extern const Kernels kernels; }
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }

}  // namespace laconic
