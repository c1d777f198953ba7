// THC's blocks of 512 to 4096 coordinates in three passes over the first-level cache.
//
//   1  x = gradient + residual, signs, butterflies of strides below 256         16 vectors at a time
//   2  strides from 256 on, rounding, and strides from 512 on of the way back   up to 16 vectors, 256 apart
//   3  the other strides of the way back, and what is left                      16 vectors at a time
//
// The way back is on small integers, so its order is free: seven strides fit into 16 bits, the others into floats.
// Two rows of 256 coordinates share a vector of words: every 128 bits hold four of the first, then four of the second,
// as packing two vectors of 32-bit integers leaves them.
#pragma once
#include "thc/cpu_block.h"

namespace laconic { namespace LACONIC_ISA {

static_assert(kChunk == 256, "");
constexpr size_t kPair = 2 * kChunk;
typedef int16_t Shorts __attribute__((vector_size(64)));

inline __m512i load_words(const void* from) { return _mm512_loadu_si512(from); }

// Tables of 16-bit words, looked up by code or by node.
template <int Nodes> struct Tables {
  __m512i below[Nodes / 32], low, gap, value;
  Floats center;
  __m512i top;

  explicit Tables(const Lookup& lookup) : center(all(lookup.center)) {
    alignas(64) uint16_t by_node[Nodes] = {}, lows[32] = {}, gaps[32] = {};
    alignas(64) int16_t values[32] = {};
    for (int node = 0; node <= lookup.granularity; ++node) by_node[node] = uint16_t(lookup.node[node].code());
    for (int code = 0; code <= lookup.last; ++code) {
      lows[code] = uint16_t(kUnit * lookup.level[code]);
      if (code < lookup.last) gaps[code] = uint16_t(kUnit * (lookup.level[code + 1] - lookup.level[code]));
      values[code] = int16_t(2 * lookup.level[code] - lookup.granularity);
    }
    for (int i = 0; i < Nodes / 32; ++i) below[i] = load_words(by_node + 32 * i);
    low = load_words(lows), gap = load_words(gaps), value = load_words(values);
    top = _mm512_set1_epi16(int16_t(kUnit * lookup.granularity));
  }

  __m512i code_below(__m512i node) const {
    if constexpr (Nodes == 64) {
      return _mm512_permutex2var_epi16(below[0], node, below[1]);
    } else {
      const __mmask32 upper = _mm512_movepi16_mask(_mm512_slli_epi16(node, 9));  // nodes with bit 6
      __m512i code = _mm512_mask_blend_epi16(upper, _mm512_permutex2var_epi16(below[0], node, below[1]),
                                             _mm512_permutex2var_epi16(below[2], node, below[3]));
      if constexpr (Nodes == 256) {
        const __m512i high = _mm512_mask_blend_epi16(upper, _mm512_permutex2var_epi16(below[4], node, below[5]),
                                                     _mm512_permutex2var_epi16(below[6], node, below[7]));
        code = _mm512_mask_blend_epi16(_mm512_movepi16_mask(_mm512_slli_epi16(node, 8)), code, high);
      }
      return code;
    }
  }
};

// Heights as integers; those beyond the grid are cut off when they are packed.
inline __m512i heights(Floats rotated, Floats scale, Floats center) {
  return _mm512_cvttps_epi32(__m512(rotated * scale + center));
}

// The codes of two rows' heights.
template <int Nodes>
inline __m512i round_pair(Floats a, Floats b, Floats scale, const Tables<Nodes>& tables, __m512i noise,
                          bool measured, uint64_t& clamped) {
  const __m512i packed = _mm512_packus_epi32(heights(a, scale, tables.center), heights(b, scale, tables.center));
  const __m512i y = _mm512_min_epu16(packed, tables.top);
  const __m512i below = tables.code_below(_mm512_srli_epi16(y, 8));
  const __m512i rest = _mm512_sub_epi16(y, _mm512_permutexvar_epi16(below, tables.low));
  const __m512i chance = _mm512_mulhi_epu16(noise, _mm512_permutexvar_epi16(below, tables.gap));
  const __mmask32 up = _mm512_cmpgt_epu16_mask(rest, chance);
  const __m512i code = _mm512_mask_add_epi16(below, up, below, _mm512_set1_epi16(1));
  if (measured) {
    const __mmask32 ends = _mm512_testn_epi16_mask(y, y) | _mm512_cmpeq_epi16_mask(y, tables.top);
    clamped += uint64_t(__builtin_popcount(ends));
  }
  return code;
}

// Two codes a byte: 8 bytes of the first row's 16 codes, and 8 of the second's.
inline void store_nibbles(__m512i code, uint8_t* out) {
  const __m128i apart = _mm_set_epi8(15, 14, 11, 10, 7, 6, 3, 2, 13, 12, 9, 8, 5, 4, 1, 0);
  const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_or_si512(code, _mm512_srli_epi32(code, 12)));
  const __m128i rows = _mm_shuffle_epi8(bytes, apart);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), rows);
  _mm_storeh_pd(reinterpret_cast<double*>(out + kChunk / 2), _mm_castsi128_pd(rows));
}
inline void store_bytes(__m512i code, uint8_t* out) {
  const __m256i apart = _mm256_set_epi32(7, 5, 3, 1, 6, 4, 2, 0);
  const __m256i rows = _mm256_permutevar8x32_epi32(_mm512_cvtepi16_epi8(code), apart);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(rows));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + kChunk), _mm256_extracti128_si256(rows, 1));
}

inline Floats signed_by(Floats v, uint16_t bits) {
  return Floats(_mm512_mask_xor_ps(__m512(v), bits, __m512(v), _mm512_set1_ps(-0.0f)));
}

// Written past the caches where the address allows it: nothing reads it soon.
inline void put(float* to, Floats v) {
  if (reinterpret_cast<uintptr_t>(to) % 64 == 0) _mm512_stream_ps(to, __m512(v));
  else store(to, v);
}
template <class T> inline void put(T* to, Floats v) {
  alignas(64) float room[kLanes];
  store(room, v);
  narrow(room, to, kLanes);
}

// 16 bytes and the 16 that lie a chunk further, as two rows.
inline Shorts two_rows(const uint8_t* bytes) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + kChunk));
  const __m128i low = _mm_unpacklo_epi32(first, second), high = _mm_unpackhi_epi32(first, second);
  return Shorts(_mm512_cvtepu8_epi16(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1)));
}

// The next block is fetched while this one is worked on, the gradient in one pass and the residual in another: more
// at a time would fill the buffers that loads wait in.
inline void prefetch(const void* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) _mm_prefetch(static_cast<const char*>(from) + at, _MM_HINT_T1);
}

// The rows' words, 2^16 times as large: a word in the upper half of 32 bits needs no sign extension.
constexpr float kLarge = 65536;
inline Floats first_row(Shorts v) {
  return Floats(_mm512_cvtepi32_ps(_mm512_unpacklo_epi16(_mm512_setzero_si512(), __m512i(v))));
}
inline Floats second_row(Shorts v) {
  return Floats(_mm512_cvtepi32_ps(_mm512_unpackhi_epi16(_mm512_setzero_si512(), __m512i(v))));
}

// Calls each(coordinate, values) for every 16 values of a block whose strides from 512 on are done; they come kLarge
// times as large.
template <class Each> inline void finish_pairs(const int16_t* words, size_t size, Each each) {
  for (size_t pair = 0; pair < size; pair += kPair) {
    Shorts v[16];
    load_all(v, words + pair, 2 * kLanes);
    across(v);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const Floats first = first_row(v[i]), second = second_row(v[i]);
      each(pair + i * kLanes, inside(first + second));
      each(pair + kChunk + i * kLanes, inside(difference(first, second)));
    }
  }
}

inline Floats plus_square(Floats sum, Floats v) { return Floats(_mm512_fmadd_ps(__m512(v), __m512(v), __m512(sum))); }
inline float total(Floats v) { return _mm512_reduce_add_ps(__m512(v)); }

// Whether the block is complete, and its step so large that it can be divided by kLarge exactly.
inline bool fast(const Block& block, float norm, float step) {
  return block.numel == block.size && (norm == 0 || step_of(step, norm, size_t(block.size)) >= 0x1p-108f);
}

// Calls function(R), R the number of the block's chunks as a constant; false if there is no way for so many.
template <class Function> bool with_chunks(const Block& block, Function function) {
  switch (block.size / int64_t(kChunk)) {
    case 2: function(std::integral_constant<int, 2>{}); return true;
    case 4: function(std::integral_constant<int, 4>{}); return true;
    case 8: function(std::integral_constant<int, 8>{}); return true;
    case 16: function(std::integral_constant<int, 16>{}); return true;
    default: return false;
  }
}

// Encodes full blocks of R chunks.
template <int Nodes, class T> class FastEncoder {
 public:
  explicit FastEncoder(const Encoding<T>& task) : task_(task), tables_(task.lookup) {}

  // Whether codes fit the tables of 32 words, and heights, at most √d times the scale, fit 32 bits.
  static bool serves(const Encoding<T>& task) { return task.bits <= 5 && task.lookup.scale < 0x1p24f; }

  // Whether the block was one for this way.
  bool operator()(const Block& block, float norm, Quality* quality) const {
    return fast(block, norm, task_.lookup.step) &&
           with_chunks(block, [&](auto chunks) { encode<chunks>(block, norm, quality); });
  }

 private:
  // `quality` is null where it is not measured.
  template <int R> void encode(const Block& block, float norm, Quality* quality) const {
    constexpr size_t size = R * kChunk;
    const uint32_t parameter = uint32_t(block.parameter);
    Scratch& room = task_.room;
    room.signs.draw_for(branch(task_.keys.shared, parameter), block);
    const Part here = part(block);
    const bool measured = quality;
    const float energy = rotate<R>(here, measured, room.rotated);
    const auto rounded = [&](auto put_codes) {
      const uint32_t key = branch(task_.keys.own, parameter) + uint32_t(block.offset / 2);
      return round<R>(here.grad + size, room.rotated, task_.lookup.scale_of(norm), tables_, key, measured, room.words,
                      put_codes);
    };
    uint8_t* const out = task_.codes_of(block);
    float clamped;
    if (task_.bits == 4) {
      clamped = rounded([=](__m512i code, size_t at) { store_nibbles(code, out + at / 2); });
    } else {
      uint8_t* const codes = room.codes;
      clamped = rounded([=](__m512i code, size_t at) { store_bytes(code, codes + at); });
      pack(codes, size, task_.bits, out);
    }
    task_.settle(block);
    const float error = subtract<R>(here, step_of(task_.lookup.step, norm, size), measured, room.words);
    if (measured) *quality = {error, energy, clamped, float(size)};
  }

  // The passes work on copies: stores of bytes might otherwise change what they were given.
  struct Part {
    const T* grad;
    const float* residual;
    float* left;
    const uint16_t* signs;

    Floats exact(const float* values, size_t at, int i) const {
      const Floats grad = load<Floats>(values + i * kLanes);
      return residual ? grad + load<Floats>(residual + at + i * kLanes) : grad;
    }
  };
  Part part(const Block& block) const {
    return {task_.grad + block.start, task_.residual ? task_.residual + block.start : nullptr,
            task_.left ? task_.left + block.start : nullptr,
            reinterpret_cast<const uint16_t*>(task_.room.signs.words)};
  }

  template <int R> static float rotate(const Part part, bool measured, float* rotated) {
    alignas(64) float room[kChunk];
    Floats energy = {};
    for (size_t at = 0; at < R * kChunk; at += kChunk) {
      const float* const grad = as_floats(part.grad + at, kChunk, room);
      Floats v[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        const Floats x = part.exact(grad, at, i);
        if (measured) energy = plus_square(energy, x);
        v[i] = inside(signed_by(x, part.signs[at / 16 + i]));
      }
      across(v);
      store_all(v, rotated + at, kLanes);
    }
    return total(energy);
  }

  template <int R, class Put>
  static float round(const T* next, const float* rotated, float each, const Tables<Nodes> tables, uint32_t key,
                     bool measured, int16_t* words, Put put_codes) {
    const Words places = Words(_mm512_set_epi32(135, 134, 7, 6, 133, 132, 5, 4, 131, 130, 3, 2, 129, 128, 1, 0));
    const Floats scale = all(each);
    uint64_t clamped = 0;
    for (size_t at = 0; at < kChunk; at += kLanes) {
      prefetch(next + at * R, kLanes * R * sizeof(T));
      Floats v[R];
      Shorts values[R / 2];
      const Words counters = places + (key + uint32_t(at / 2));
      load_all(v, rotated + at, kChunk);
      across(v);
#pragma GCC unroll 8
      for (int i = 0; i < R; i += 2) {
        const size_t first = at + size_t(i) * kChunk;
        const Words noise = hashed(Words(counters + uint32_t(i * kChunk / 2)));
        const __m512i code = round_pair(v[i], v[i + 1], scale, tables, __m512i(noise), measured, clamped);
        values[i / 2] = Shorts(_mm512_permutexvar_epi16(code, tables.value));
        put_codes(code, first);
      }
      across(values);
      store_all(values, words + 2 * at, kPair);
    }
    return float(clamped);
  }

  template <int R> static float subtract(const Part part, float each, bool measured, const int16_t* words) {
    const Floats step = all(each / kLarge);
    Floats error = {};
    finish_pairs(words, R * kChunk, [&](size_t at, Floats values) {
      if (part.residual) prefetch(part.residual + R * kChunk + at, sizeof(Floats));
      const Floats said = signed_by(values * step, part.signs[at / 16]);
      alignas(64) float room[kLanes];
      const Floats rest = part.exact(as_floats(part.grad + at, kLanes, room), at, 0) - said;
      if (measured) error = plus_square(error, rest);
      if (part.left) put(part.left + at, rest);
    });
    return total(error);
  }

  const Encoding<T>& task_;
  const Tables<Nodes> tables_;
};

template <int R, class T> void decode_full(const Decoding<T>& task, const Block& block, float norm) {
  const uint8_t* const sums = task.sums(block);
  const Shorts middle = Shorts{} + int16_t(task.count * task.granularity);
  for (size_t at = 0; at < kChunk; at += kLanes) {
    Shorts v[R / 2];
#pragma GCC unroll 8
    for (int i = 0; i < R / 2; ++i) {
      const Shorts sum = two_rows(sums + at + i * kPair);
      v[i] = sum + sum - middle;
    }
    across(v);
    store_all(v, task.room.words + 2 * at, kPair);
  }
  task.room.signs.draw_for(branch(task.key, uint32_t(block.parameter)), block);
  const uint16_t* const signs = reinterpret_cast<const uint16_t*>(task.room.signs.words);
  const Floats step = all(step_of(task.step / float(task.count), norm, size_t(block.size)) / kLarge);
  finish_pairs(task.room.words, R * kChunk, [&](size_t at, Floats values) {
    put(task.grad + block.start + at, signed_by(values * step, signs[at / 16]));
  });
}

template <class T> bool decode_fast(const Decoding<T>& task, const Block& block, float norm) {
  return task.lane == 8 && fast(block, norm, task.step / float(task.count)) &&
         with_chunks(block, [&](auto chunks) { decode_full<chunks>(task, block, norm); });
}

}}  // namespace laconic::LACONIC_ISA
