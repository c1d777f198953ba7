// Vectors as wide as the instruction set's registers, and the Walsh-Hadamard butterflies on them.
//
// Butterflies add in one order, smallest stride first, on every instruction set, so that the same inputs give the
// same bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace laconic { namespace LACONIC_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kGroup = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kGroup = 8;
#else
constexpr int kLanes = 4, kGroup = 8;
#endif
constexpr size_t kChunk = kLanes * kGroup;  // coordinates that the registers hold

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));

template <class T> struct VectorOf;
template <> struct VectorOf<float> { using type = Floats; };
template <> struct VectorOf<int32_t> { using type = Ints; };

template <class V, class T> inline V load(const T* from) { V v; std::memcpy(&v, from, sizeof v); return v; }
template <class V, class T> inline void store(T* to, V v) { std::memcpy(to, &v, sizeof v); }
inline Floats all(float value) { return Floats{} + value; }

template <int... I> inline Words lane_numbers(std::integer_sequence<int, I...>) { return Words{uint32_t(I)...}; }
inline Words lane_numbers() { return lane_numbers(std::make_integer_sequence<int, kLanes>{}); }

// Bytes as integers.
inline Ints from_bytes(const uint8_t* bytes) {
#if defined(__AVX512F__)
  return Ints(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))));
#elif defined(__AVX2__)
  return Ints(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))));
#else
  Ints v;
  for (int lane = 0; lane < kLanes; ++lane) v[lane] = bytes[lane];
  return v;
#endif
}

// The lowest byte of every lane.
inline void to_bytes(Ints v, uint8_t* bytes) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), _mm512_cvtepi32_epi8(__m512i(v)));
#elif defined(__AVX2__)
  const __m256i lowest = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                          0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i packed = _mm256_shuffle_epi8(__m256i(v), lowest);
  const __m128i halves = _mm_unpacklo_epi32(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(bytes), halves);
#else
  for (int lane = 0; lane < kLanes; ++lane) bytes[lane] = uint8_t(v[lane]);
#endif
}

// Bit i is set where lane i is at least `least`; both are integers from 0 on.
inline uint64_t lanes_from(Ints v, int32_t least) {
#if defined(__AVX512F__)
  return _mm512_cmpge_epi32_mask(__m512i(v), _mm512_set1_epi32(least));
#elif defined(__AVX2__)
  return uint32_t(_mm256_movemask_ps(__m256(__m256i(v >= least))));
#else
  const Ints there = v >= least;
  uint64_t mask = 0;
  for (int lane = 0; lane < kLanes; ++lane) mask |= uint64_t(there[lane] & 1) << lane;
  return mask;
#endif
}

template <int S, class V, int... I> inline V swapped(V v, std::integer_sequence<int, I...>) {
#ifdef __clang__
  return __builtin_shufflevector(v, v, (I ^ S)...);
#else
  return __builtin_shuffle(v, Ints{(I ^ S)...});
#endif
}

// Lane i becomes the sum of lanes i and i + S where bit S of i is not set, else their difference.
template <int S, int... I> inline Floats butterfly(Floats v, std::integer_sequence<int, I...> lanes) {
  const Floats sign = {(I & S ? -1.0f : 1.0f)...}, other = swapped<S>(v, lanes);
#if defined(__AVX512F__)
  return Floats(_mm512_fmadd_ps(__m512(v), __m512(sign), __m512(other)));  // the product is exact
#elif defined(__AVX2__)
  return Floats(_mm256_fmadd_ps(__m256(v), __m256(sign), __m256(other)));
#else
  return v * sign + other;
#endif
}
template <int S, int... I> inline Ints butterfly(Ints v, std::integer_sequence<int, I...> lanes) {
  const Ints negative = {(I & S ? -1 : 0)...};
  return ((v ^ negative) - negative) + swapped<S>(v, lanes);
}

template <int S = 1, class V> inline V inside(V v) {
  if constexpr (S < kLanes)
    return inside<2 * S>(butterfly<S>(v, std::make_integer_sequence<int, kLanes>{}));
  else
    return v;
}

template <class V> inline V difference(V left, V right) { return left - right; }
#if defined(__AVX512F__)
// The same value from the multipliers, which would idle while the adders work.
inline Floats difference(Floats left, Floats right) {
  return Floats(_mm512_fnmadd_ps(__m512(right), _mm512_set1_ps(1.0f), __m512(left)));
}
#endif

template <int R, class V> inline void across(V (&v)[R]) {
#pragma GCC unroll 8
  for (int stride = 1; stride < R; stride *= 2)
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
      if (!(i & stride)) {
        const V left = v[i], right = v[i + stride];
        v[i] = left + right;
        v[i + stride] = difference(left, right);
      }
}

template <int R, class V, class T> inline void load_all(V (&v)[R], const T* from, size_t stride) {
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) v[i] = load<V>(from + i * stride);
}
template <int R, class V, class T> inline void store_all(const V (&v)[R], T* to, size_t stride) {
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) store(to + i * stride, v[i]);
}

template <class T> void strides_below_chunk(T* row, size_t size) {
  using V = typename VectorOf<T>::type;
  for (size_t at = 0; at < size; at += kChunk) {
    V v[kGroup];
    load_all(v, row + at, kLanes);
#pragma GCC unroll 16
    for (V& each : v) each = inside(each);
    across(v);
    store_all(v, row + at, kLanes);
  }
}

template <int R, class T> void strides_from(T* row, size_t size, size_t stride) {
  using V = typename VectorOf<T>::type;
  for (size_t base = 0; base < size; base += R * stride)
    for (size_t at = base; at < base + stride; at += kLanes) {
      V v[R];
      load_all(v, row + at, stride);
      across(v);
      store_all(v, row + at, stride);
    }
}

template <class T> void scalar_hadamard(T* row, size_t size) {
  for (size_t stride = 1; stride < size; stride *= 2)
    for (size_t base = 0; base < size; base += 2 * stride)
      for (size_t i = base; i < base + stride; ++i) {
        const T left = row[i], right = row[i + stride];
        row[i] = left + right;
        row[i + stride] = left - right;
      }
}

// The transform, without its scale, in place; `size` is a power of two.
template <class T> void hadamard(T* row, size_t size) {
  if (size < kChunk) return scalar_hadamard(row, size);
  strides_below_chunk(row, size);
  for (size_t stride = kChunk; stride < size;) {
    const size_t left = size / stride;
    if (left >= 8) strides_from<8>(row, size, stride), stride *= 8;
    else if (left == 4) strides_from<4>(row, size, stride), stride *= 4;
    else strides_from<2>(row, size, stride), stride *= 2;
  }
}

}}  // namespace laconic::LACONIC_ISA
