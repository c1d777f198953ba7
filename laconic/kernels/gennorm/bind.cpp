// Python's door to GenNorm's ops.
#include "coding/bind.h"
#include "native/bind.h"

namespace laconic {
namespace {

Minifloat minifloat_of(const std::string& name) {
  if (name == "e5m2") return kE5m2;
  if (name == "e4m3") return kE4m3;
  require(name == "fp4", "a format is e5m2, e4m3 or fp4");
  return kFp4;
}

template <class Part> const Part* parts_of(const int64_t* rows, size_t count, size_t values) {
  const Part* const parts = reinterpret_cast<const Part*>(rows);
  for (size_t k = 0; k < count; ++k)
    require(parts[k].start >= 0 && parts[k].count >= 0 && size_t(parts[k].start) <= values &&
                size_t(parts[k].count) <= values - size_t(parts[k].start),
            "a part lies outside its gradient");
  return parts;
}

const LevelSpan* spans_of(const Of<const int64_t>& rows, size_t values) {
  require(rows.ndim() == 2 && rows.shape(1) == 2, "a part has a start and a number of coordinates");
  return parts_of<LevelSpan>(rows.data(), rows.shape(0), values);
}

void gennorm_moments(const Array& grad, const Optional& old, double memory, const Of<const int64_t>& rows,
                     const Of<double>& moments) {
  const Gradient gradient = gradient_of(grad);
  const Residual residual = {residual_of(old, grad), float(memory), nullptr};
  const LevelSpan* const parts = spans_of(rows, grad.size());
  require(moments.size() == 2 * rows.shape(0), "a part has two moments");
  nb::gil_scoped_release unlocked;
  chosen.kernels->gennorm_moments(gradient, residual, parts, rows.shape(0),
                                  reinterpret_cast<Moments*>(moments.data()));
}

bool gennorm_quantize(const Array& grad, const Optional& old, double memory, const Of<const int64_t>& rows,
                      const Of<const float>& scales, const std::string& format, const Optional& left,
                      const Of<uint8_t>& symbols, const Of<int32_t>& counts) {
  const Gradient gradient = gradient_of(grad);
  const Residual residual = {residual_of(old, grad), float(memory), const_cast<float*>(residual_of(left, grad))};
  const Minifloat minifloat = minifloat_of(format);
  const LevelSpan* const parts = spans_of(rows, grad.size());
  const size_t count = rows.shape(0);
  require(scales.size() == 2 * count && counts.size() == kSymbols * count,
          "a part has a scale, its inverse, and 256 counts");
  size_t spoken = 0;
  for (size_t k = 0; k < count; ++k) spoken += scales.data()[2 * k] > 0 ? size_t(parts[k].count) : 0;
  require(symbols.size() >= spoken, "there is room for all symbols");
  nb::gil_scoped_release unlocked;
  return chosen.kernels->gennorm_quantize(gradient, residual, parts, count,
                                          reinterpret_cast<const LevelScale*>(scales.data()), minifloat,
                                          symbols.data(), reinterpret_cast<LevelCounts*>(counts.data()));
}

void gennorm_average(const Bytes& messages, size_t offset, const Of<const int64_t>& rows,
                     const Of<const float>& inverses, const Of<const int32_t>& books, const std::string& format,
                     const Array& out) {
  const Gradient gradient = gradient_of(out);
  const Minifloat minifloat = minifloat_of(format);
  const std::vector<AnsBook> all = books_of(books);
  require(rows.ndim() == 3 && rows.shape(0) == messages.size() && rows.shape(2) == 3 && !messages.empty(),
          "every message has parts of three columns");
  const size_t count = rows.shape(1);
  require(inverses.size() == messages.size() * count, "every part has an inverse scale");
  std::vector<Leveled> leveled;
  for (size_t k = 0; k < messages.size(); ++k) {
    const LevelPart* const own = parts_of<LevelPart>(rows.data() + 3 * k * count, count, out.size());
    for (size_t p = 0; p < count; ++p) {
      require(own[p].start == rows.data()[3 * p] && own[p].count == rows.data()[3 * p + 1],
              "all messages are about the same parts");
      require(own[p].book < int64_t(all.size()), "a part has a book, or -1");
    }
    const Sealing sealing = sealing_of(size_t(minifloat.bits()), offset, messages[k].size());
    leveled.push_back({messages[k].data(), sealing, own, inverses.data() + k * count});
  }
  LevelFault fault;
  {
    nb::gil_scoped_release unlocked;
    fault = chosen.kernels->gennorm_average(leveled.data(), leveled.size(), count, all.data(), minifloat, gradient);
  }
  if (fault.fault != CodeFault::none) damaged(size_t(fault.message), said(fault.fault));
}

}  // namespace

void bind_gennorm(nb::module_& module) {
#define LACONIC_OP LACONIC_BIND_OP
#include "gennorm/ops.inc"
#undef LACONIC_OP
}

}  // namespace laconic
