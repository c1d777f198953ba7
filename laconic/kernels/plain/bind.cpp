// Python's door to the plain ops.
#include "native/bind.h"

namespace laconic {
namespace {

void average(const Rows& messages, const Array& out) {
  if (messages.ndim() != 2 || messages.shape(0) < 1 || messages.shape(1) != out.size())
    throw nb::value_error("average takes messages (rows, columns) and out (columns)");
  const Format format = format_of(messages);
  if (format != format_of(out)) throw nb::type_error("messages and out differ in dtype");
  const size_t stride = stride_of(messages);
  nb::gil_scoped_release unlocked;
  chosen.kernels->average(messages.data(), messages.shape(0), messages.shape(1), stride, format, out.data());
}

bool all_finite(const Array& values) {
  const Format format = format_of(values);
  nb::gil_scoped_release unlocked;
  return chosen.kernels->all_finite(values.data(), values.size(), format);
}

void product(const Of<const float>& deltas, const Of<const float>& inputs, const Of<float>& out) {
  require(deltas.ndim() == 2 && inputs.ndim() == 2 && out.ndim() == 2 && deltas.shape(0) == inputs.shape(0) &&
              out.shape(0) == deltas.shape(1) && out.shape(1) == inputs.shape(1),
          "product takes deltas (rows, outputs), inputs (rows, width) and out (outputs, width)");
  nb::gil_scoped_release unlocked;
  chosen.kernels->product(deltas.data(), inputs.data(), deltas.shape(0), out.shape(0), out.shape(1), out.data());
}

}  // namespace

void bind_plain(nb::module_& module) {
#define LACONIC_OP LACONIC_BIND_OP
#include "plain/ops.inc"
#undef LACONIC_OP
}

}  // namespace laconic
