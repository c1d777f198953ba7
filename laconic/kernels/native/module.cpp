// The extension: which instruction sets this machine has, which one is chosen, and every family's door.
#include <string>
#include <vector>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "native/bind.h"

#define LACONIC_FAMILY(name) void bind_##name(nb::module_& module);
namespace laconic {
#include "ops.inc"
}  // namespace laconic

using namespace laconic;

namespace {

#ifdef __x86_64__
#define LACONIC_FEATURE(name) bool has_##name() { return __builtin_cpu_supports(#name); }
LACONIC_FEATURE(avx2)
LACONIC_FEATURE(fma)
LACONIC_FEATURE(bmi2)
LACONIC_FEATURE(avx512f)
LACONIC_FEATURE(avx512bw)
LACONIC_FEATURE(avx512dq)
LACONIC_FEATURE(avx512vl)
// Not every compiler's builtin knows it.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}
#endif

// Fastest first; the last one runs everywhere. LACONIC_NEEDS_<set> asks for all that the set is compiled with.
std::vector<InstructionSet> available() {
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

}  // namespace

InstructionSet laconic::chosen = available().front();

namespace {

void choose(const std::string& name) {
  for (const auto& set : available())
    if (set.name == name) {
      chosen = set;
      return;
    }
  throw nb::value_error(("this machine has no instruction set called " + name).c_str());
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const auto& set : available()) names.push_back(set.name);
  return names;
}

}  // namespace

NB_MODULE(_native, module) {
#define LACONIC_FAMILY(name) bind_##name(module);
#include "ops.inc"
  module.def("instruction_sets", &instruction_sets);
  module.def("chosen", [] { return chosen.name; });
  module.def("choose", &choose, nb::arg("name"));
}
