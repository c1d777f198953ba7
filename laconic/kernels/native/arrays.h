// Arrays that come from Python, and checks on them.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "native/formats.h"

namespace laconic {

namespace nb = nanobind;

using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
template <class T> using Of = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using Optional = std::optional<Of<float>>;
// Rows that may lie apart, each by itself in one place: messages whose seals stand between them.
using Rows = nb::ndarray<nb::device::cpu>;
template <class T> using RowsOf = nb::ndarray<T, nb::device::cpu>;
using Bytes = std::vector<Of<const uint8_t>>;

inline void require(bool holds, const char* sentence) {
  if (!holds) throw nb::value_error(sentence);
}

// From one row to the next, in values.
template <class A> size_t stride_of(const A& rows) {
  require(rows.ndim() == 2, "rows have two dimensions");
  require(rows.shape(1) <= 1 || rows.stride(1) == 1, "a row lies in one place");
  require(rows.shape(0) <= 1 || rows.stride(0) >= int64_t(rows.shape(1)), "rows lie one behind the other");
  return rows.shape(0) <= 1 ? rows.shape(1) : size_t(rows.stride(0));
}

template <class A> Format format_of(const A& array) {
  const nb::dlpack::dtype type = array.dtype();
  if (type == nb::dtype<float>()) return Format::fp32;
  if (type.bits == 16 && type.code == uint8_t(nb::dlpack::dtype_code::Bfloat)) return Format::bf16;
  if (type.bits == 16 && type.code == uint8_t(nb::dlpack::dtype_code::Float)) return Format::fp16;
  throw nb::type_error("expected float32, bfloat16 or float16");
}

inline Gradient gradient_of(const Array& grad) { return {grad.data(), format_of(grad)}; }

inline const float* residual_of(const Optional& residual, const Array& grad) {
  require(!residual || residual->size() == grad.size(), "a residual has as many values as its gradient");
  return residual ? residual->data() : nullptr;
}

}  // namespace laconic
