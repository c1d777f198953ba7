// Python's door to the ops on symbols.
#include "native/bind.h"

namespace laconic {
namespace {

void unpack_symbols(const Of<const uint8_t>& packed, int bits, const Of<uint8_t>& symbols) {
  require(bits >= 1 && bits <= 8 && packed.size() >= (symbols.size() * size_t(bits) + 7) / 8,
          "all symbols are in the packed ones, in 1 to 8 bits");
  nb::gil_scoped_release unlocked;
  chosen.kernels->unpack_symbols(packed.data(), bits, symbols.size(), symbols.data());
}

void count_runs(const Of<const uint8_t>& symbols, size_t run, const Of<int32_t>& counts) {
  require(run >= 1 && run < size_t(1) << 31 && counts.ndim() == 2 && counts.shape(1) == kSymbols &&
              counts.shape(0) == (symbols.size() + run - 1) / run,
          "every run has 256 counts");
  nb::gil_scoped_release unlocked;
  chosen.kernels->count_runs(symbols.data(), symbols.size(), run, counts.data());
}

}  // namespace

void bind_packing(nb::module_& module) {
#define LACONIC_OP LACONIC_BIND_OP
#include "packing/ops.inc"
#undef LACONIC_OP
}

}  // namespace laconic
