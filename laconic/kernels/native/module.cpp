// The extension: which instruction sets this machine has, which one is chosen, and every family's door.
#include <string>
#include <vector>

#include "native/available.h"
#include "native/bind.h"

#define LACONIC_FAMILY(name) void bind_##name(nb::module_& module);
namespace laconic {
#include "ops.inc"
}  // namespace laconic

using namespace laconic;

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
