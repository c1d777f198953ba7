// Writing past the caches what will not be read again soon.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "native/vectors.h"
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace laconic { namespace LACONIC_ISA {

constexpr size_t kLine = 16;  // floats of a cache line

// Copies floats; whole cache lines go past the caches.
inline void stream(const float* from, float* to, size_t count) {
  size_t i = 0;
#if defined(__AVX512F__) || defined(__AVX2__)
  const size_t ahead = (4 * kLine - reinterpret_cast<uintptr_t>(to) % (4 * kLine)) / 4 % kLine;
  i = std::min(ahead, count);
  std::memcpy(to, from, i * sizeof(float));
  for (; i + kLine <= count; i += kLine)
#if defined(__AVX512F__)
    _mm512_stream_ps(to + i, _mm512_loadu_ps(from + i));
#else
    _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i)), _mm256_stream_ps(to + i + 8, _mm256_loadu_ps(from + i + 8));
#endif
#endif
  std::memcpy(to + i, from + i, (count - i) * sizeof(float));
}

// Whether whole vectors from here on may be streamed.
inline bool streamable(const float* to) { return reinterpret_cast<uintptr_t>(to) % (4 * kLine) == 0; }
inline void stream(float* to, Floats values) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, __m512(values));
#elif defined(__AVX2__)
  _mm256_stream_ps(to, __m256(values));
#else
  store(to, values);
#endif
}

// What was streamed is there for other threads.
inline void published() {
#if defined(__AVX512F__) || defined(__AVX2__)
  _mm_sfence();
#endif
}

}}  // namespace laconic::LACONIC_ISA
