// Python's door to the C++ kernels: checks what comes in, releases the GIL, calls the chosen instruction set.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "kernels.h"

namespace nb = nanobind;
using namespace laconic;

namespace {

using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;

struct InstructionSet {
  std::string name;
  const Kernels* kernels;
};

// Fastest first; the last one runs everywhere.
std::vector<InstructionSet> available() {
  std::vector<InstructionSet> sets;
#ifdef LACONIC_HAS_avx512
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    sets.push_back({"avx512", &avx512::kernels});
#endif
#ifdef LACONIC_HAS_avx2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
      __builtin_cpu_supports("bmi2"))
    sets.push_back({"avx2", &avx2::kernels});
#endif
  sets.push_back({"portable", &portable::kernels});
  return sets;
}

InstructionSet chosen = available().front();

void choose(const std::string& name) {
  for (const auto& set : available())
    if (set.name == name) {
      chosen = set;
      return;
    }
  throw nb::value_error(("this machine has no instruction set called " + name).c_str());
}

Format format_of(const Array& array) {
  const nb::dlpack::dtype type = array.dtype();
  if (type == nb::dtype<float>()) return Format::fp32;
  if (type.bits == 16 && type.code == uint8_t(nb::dlpack::dtype_code::Bfloat)) return Format::bf16;
  if (type.bits == 16 && type.code == uint8_t(nb::dlpack::dtype_code::Float)) return Format::fp16;
  throw nb::type_error("expected float32, bfloat16 or float16");
}

void average(const Array& messages, const Array& out) {
  if (messages.ndim() != 2 || messages.shape(0) < 1 || messages.shape(1) != out.size())
    throw nb::value_error("average takes messages (rows, columns) and out (columns)");
  const Format format = format_of(messages);
  if (format != format_of(out)) throw nb::type_error("messages and out differ in dtype");
  nb::gil_scoped_release unlocked;
  chosen.kernels->average(messages.data(), messages.shape(0), messages.shape(1), format, out.data());
}

bool all_finite(const Array& values) {
  const Format format = format_of(values);
  nb::gil_scoped_release unlocked;
  return chosen.kernels->all_finite(values.data(), values.size(), format);
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const auto& set : available()) names.push_back(set.name);
  return names;
}

}  // namespace

NB_MODULE(_native, module) {
  module.def("average", &average, nb::arg("messages"), nb::arg("out").noconvert());
  module.def("all_finite", &all_finite, nb::arg("values"));
  module.def("instruction_sets", &instruction_sets);
  module.def("chosen", [] { return chosen.name; });
  module.def("choose", &choose, nb::arg("name"));
}
