// What every instruction set provides: a kernel for each of ops.inc. available.h says which of them this machine has.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

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

struct InstructionSet {
  std::string name;
  const Kernels* kernels;
};

namespace portable { extern const Kernels kernels; }
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }

}  // namespace laconic
