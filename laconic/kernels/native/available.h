// Which instruction sets this machine has. Whoever links several of them defines LACONIC_NEEDS_<set>, which asks for
// all that the set is compiled with.
#pragma once
#include <vector>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "native/kernels.h"

namespace laconic {

#ifdef __x86_64__
#define LACONIC_FEATURE(name) inline bool has_##name() { return __builtin_cpu_supports(#name); }
LACONIC_FEATURE(avx2)
LACONIC_FEATURE(fma)
LACONIC_FEATURE(bmi2)
LACONIC_FEATURE(avx512f)
LACONIC_FEATURE(avx512bw)
LACONIC_FEATURE(avx512dq)
LACONIC_FEATURE(avx512vl)
#undef LACONIC_FEATURE
// Not every compiler's builtin knows it.
inline bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}
#endif

// Fastest first; the last one runs everywhere.
inline std::vector<InstructionSet> available() {
  std::vector<InstructionSet> sets;
#ifdef LACONIC_NEEDS_avx512
  if (LACONIC_NEEDS_avx512) sets.push_back({"avx512", &avx512::kernels});
#endif
#ifdef LACONIC_NEEDS_avx2
  if (LACONIC_NEEDS_avx2) sets.push_back({"avx2", &avx2::kernels});
#endif
  sets.push_back({"portable", &portable::kernels});
  return sets;
}

}  // namespace laconic
