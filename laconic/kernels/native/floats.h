// Widening to fp32 and narrowing from it, round to nearest even, for the three formats on the wire.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "native/formats.h"
#ifdef __F16C__
#include <immintrin.h>
#endif

namespace laconic { namespace LACONIC_ISA {

struct Bfloat { uint16_t bits; };
struct Half { uint16_t bits; };

inline uint32_t bits_of(float value) { uint32_t bits; std::memcpy(&bits, &value, 4); return bits; }
inline float float_of(uint32_t bits) { float value; std::memcpy(&value, &bits, 4); return value; }

inline float widen(float value) { return value; }
inline float widen(Bfloat value) { return float_of(uint32_t(value.bits) << 16); }
inline float widen(Half value) {
  const uint32_t sign = uint32_t(value.bits & 0x8000) << 16;
  const uint32_t rest = uint32_t(value.bits & 0x7fff) << 13;
  if (rest >= 0x0f800000) return float_of(sign | rest | 0x7f800000);  // infinity or NaN
  return float_of(sign | bits_of(float_of(rest) * 0x1p112f));         // the product is exact, subnormals included
}

inline void narrow(float value, float& out) { out = value; }
inline void narrow(float value, Bfloat& out) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  out.bits = value == value ? uint16_t(rounded >> 16) : uint16_t(0x7fc0);
}
inline void narrow(float value, Half& out) {
  const uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  uint32_t half;
  if (magnitude > 0x7f800000) half = 0x7e00;        // NaN
  else if (magnitude >= 0x477ff000) half = 0x7c00;  // rounds beyond 65504
  else if (magnitude < 0x38800000) half = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000;  // subnormal: the addition rounds
  else half = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  out.bits = uint16_t(sign | half);
}

// function(values), with the values in their own type.
template <class Function> auto with_type(const Gradient& grad, Function function) {
  switch (grad.format) {
    case Format::bf16: return function(static_cast<Bfloat*>(grad.values));
    case Format::fp16: return function(static_cast<Half*>(grad.values));
    default: return function(static_cast<float*>(grad.values));
  }
}

template <class T> inline void widen(const T* in, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = widen(in[i]);
}
template <class T> inline void narrow(const float* in, T* out, size_t count) {
  for (size_t i = 0; i < count; ++i) narrow(in[i], out[i]);
}

#ifdef __F16C__
template <> inline void widen(const Half* in, float* out, size_t count) {
  const size_t whole = count / 8 * 8;
  for (size_t i = 0; i < whole; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  for (size_t i = whole; i < count; ++i) out[i] = widen(in[i]);
}
template <> inline void narrow(const float* in, Half* out, size_t count) {
  const size_t whole = count / 8 * 8;
  for (size_t i = 0; i < whole; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
  for (size_t i = whole; i < count; ++i) narrow(in[i], out[i]);
}
#endif

}}  // namespace laconic::LACONIC_ISA
