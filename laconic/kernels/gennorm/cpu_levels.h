// The levels of a minifloat: codes from values, and values from codes; gennorm/__init__.py is the specification.
#pragma once
#include <cmath>

#include "native/floats.h"
#include "gennorm/cpu.h"
#include "native/vectors.h"

namespace laconic { namespace LACONIC_ISA {

// The value, but no larger than the bound, which is positive; its sign stays.
inline Floats at_most(Floats value, float bound) {
#if defined(__AVX512F__)
  return Floats(_mm512_range_ps(__m512(value), _mm512_set1_ps(bound), 0x2));
#else
  const Ints sign = Ints(value) & INT32_MIN, magnitude = Ints(value) & INT32_MAX, most = Ints(all(bound));
  return Floats((magnitude < most ? magnitude : most) | sign);
#endif
}
// The same, but no smaller.
inline Floats at_least(Floats value, float bound) {
#if defined(__AVX512F__)
  return Floats(_mm512_range_ps(__m512(value), _mm512_set1_ps(bound), 0x3));
#else
  const Ints sign = Ints(value) & INT32_MIN, magnitude = Ints(value) & INT32_MAX, least = Ints(all(bound));
  return Floats((magnitude > least ? magnitude : least) | sign);
#endif
}
// a · b + c, where the product is exact: fused or not, the result is the same.
inline Floats exact_product_plus(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return Floats(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__AVX2__)
  return Floats(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#else
  return a * b + c;
#endif
}
inline bool all_zero(Floats v) {
  bool zero = true;
  for (int k = 0; k < kLanes; ++k) zero &= v[k] == 0.0f;
  return zero;
}
// The integer, or `twice` less it where the value is negative.
inline Ints mirrored(Ints integer, Floats value, int32_t twice) {
#if defined(__AVX512F__)
  return Ints(_mm512_mask_sub_epi32(__m512i(integer), _mm512_movepi32_mask(__m512i(value)), _mm512_set1_epi32(twice),
                                    __m512i(integer)));
#else
  const Ints sign = Ints(value) >> 31;
  return (integer ^ sign) + (sign & (twice + 1));
#endif
}

// Codes from values. Adding 1.5 · 2^(23 - m) times a value's power of two, or the smallest normal level's if that is
// larger, rounds it to a level: the sum has m bits to say which of an octave's, and its exponent says which octave.
class Levels {
 public:
  explicit Levels(Minifloat format)
      : shift_(23 - format.mantissa),
        smallest_(std::ldexp(1.0f, 1 - format.bias)),
        largest_(std::ldexp(2.0f - std::ldexp(1.0f, -format.mantissa), (1 << format.exponent) - 2 - format.bias)),
        lift_(std::ldexp(1.5f, shift_)),
        half_gap_(std::ldexp(0.5f, (1 << format.exponent) - 2 - format.bias - format.mantissa)) {
    const float zero = smallest_ * lift_;
    uint32_t bits;
    std::memcpy(&bits, &zero, 4);
    middle_ = int32_t((bits + (bits >> shift_)) & 255);
    code_ = int32_t(format.zero()) - middle_;
  }

  // Writes codes, and what they leave by put(i, values); whether all values are finite.
  template <class Values, class Put>
  bool quantize(Values values, size_t count, LevelScale scale, uint8_t* codes, Put put) const {
    Floats wrong = {};  // zero times anything that is not finite is not a number
    const Floats lift = all(lift_);
    const float most = half_gap_ * scale.inverse;
    for (size_t i = 0; i < count; i += kLanes) {
      const Floats value = values(i), scaled = at_most(value * scale.scale, largest_);
      wrong = exact_product_plus(value, Floats{}, wrong);
      const Floats power = Floats(Ints(at_least(scaled, smallest_)) & int32_t(0xff800000));
      const Floats lifted = exact_product_plus(power, lift, scaled);
      const Floats level = exact_product_plus(power, -lift, lifted);
      const Ints place = Ints(lifted) + Ints(Words(lifted) >> shift_);
      to_bytes(mirrored(place, scaled, 2 * middle_) + code_, codes + i);
      put(i, at_most(value - level * scale.inverse, most));
    }
    return all_zero(wrong);
  }

 private:
  int shift_;
  float smallest_, largest_, lift_, half_gap_;
  int32_t middle_, code_;  // of the sum for zero; what makes a code of it
};

// Values from codes, in a unit of theirs: a code, less zero's, is a sign and the leading bits of a number of half
// precision.
class LevelValues {
 public:
  explicit LevelValues(Minifloat format)
      : zero_(int16_t(format.zero())), shift_(10 - format.mantissa), unit_(std::ldexp(1.0f, 15 - format.bias)) {
#if !defined(__F16C__)
    for (int code = 0; code <= 2 * zero_; ++code) {
      const int place = code < zero_ ? zero_ - code : code - zero_;
      table_[code] = widen(Half{uint16_t(place << shift_ | (code < zero_) << 15)});
    }
#endif
  }

  float unit() const { return unit_; }
  // Whether all codes are levels.
  bool known(const uint8_t* codes, size_t count) const {
    uint8_t most = 0;
    for (size_t i = 0; i < count; ++i) most = codes[i] > most ? codes[i] : most;
    return most <= 2 * zero_;
  }
  Floats operator()(const uint8_t* codes) const {
#if defined(__AVX512F__)
    const __m256i place = _mm256_sub_epi16(
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))), _mm256_set1_epi16(zero_));
    const __m256i magnitude = _mm256_sll_epi16(_mm256_abs_epi16(place), _mm_cvtsi32_si128(shift_));
    const __m256i sign = _mm256_set1_epi16(INT16_MIN);
    return Floats(_mm512_cvtph_ps(_mm256_ternarylogic_epi32(magnitude, place, sign, 0xf8)));
#elif defined(__F16C__)
    const __m128i place = _mm_sub_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes))),
                                        _mm_set1_epi16(zero_));
    const __m128i magnitude = _mm_sll_epi16(_mm_abs_epi16(place), _mm_cvtsi32_si128(shift_));
    const __m128i sign = _mm_and_si128(place, _mm_set1_epi16(INT16_MIN));
    return Floats(_mm256_cvtph_ps(_mm_or_si128(magnitude, sign)));
#else
    Floats values;
    for (int k = 0; k < kLanes; ++k) values[k] = table_[codes[k]];
    return values;
#endif
  }

 private:
  int16_t zero_;
  int shift_;
  float unit_;
#if !defined(__F16C__)
  float table_[kSymbols] = {};
#endif
};

}}  // namespace laconic::LACONIC_ISA
