// THC's kernels, compiled once per instruction set; thc/__init__.py is their specification.
#include "native/instruction_set.h"

#include <memory>

#include "thc/cpu_block.h"
#include "native/words.h"
#ifdef __AVX512BW__
#include "thc/cpu_avx512.h"
#endif

namespace laconic { namespace LACONIC_ISA {
namespace {

// The squared length of `values`, or of `values` and `more` together.
float squared_length(const float* values, const float* more, size_t count) {
  Floats sums[8] = {};
  const size_t whole = count / (8 * kLanes) * (8 * kLanes);
  for (size_t i = 0; i < whole; i += 8 * kLanes)
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      const Floats first = load<Floats>(values + i + k * kLanes);
      const Floats v = more ? first + load<Floats>(more + i + k * kLanes) : first;
      sums[k] += v * v;
    }
  float total = 0;
  for (const Floats& sum : sums)
    for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
  for (size_t i = whole; i < count; ++i) {
    const float v = more ? values[i] + more[i] : values[i];
    total += v * v;
  }
  return total;
}

#ifdef __AVX2__
constexpr size_t kNibbleBytes = 32;  // of codes that are summed at a time

// Sums of 4-bit codes' integers, while they fit into bytes: of the lower nibbles and of the higher.
class Nibbles {
 public:
  explicit Nibbles(const int64_t* table) {
    alignas(16) uint8_t levels[16];
    for (int code = 0; code < 16; ++code) levels[code] = uint8_t(table[code]);
    lookup_ = _mm256_broadcastsi128_si256(*reinterpret_cast<const __m128i*>(levels));
  }

  void add(const uint8_t* from) {
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble);
    even_ = _mm256_add_epi8(even_, _mm256_shuffle_epi8(lookup_, _mm256_and_si256(codes, nibble)));
    odd_ = _mm256_add_epi8(odd_, _mm256_shuffle_epi8(lookup_, high));
  }

  // The sums of the first 32 coordinates or of the others, in order.
  __m256i half(bool second) const {
    const __m256i low = _mm256_unpacklo_epi8(even_, odd_), high = _mm256_unpackhi_epi8(even_, odd_);
    return second ? _mm256_permute2x128_si256(low, high, 0x31) : _mm256_permute2x128_si256(low, high, 0x20);
  }

  void clear() { even_ = odd_ = _mm256_setzero_si256(); }

 private:
  __m256i lookup_, even_ = _mm256_setzero_si256(), odd_ = even_;
};

// Sums that fit into bytes; returns how many coordinates are done, a multiple of 64.
size_t sum_to_bytes(const uint8_t* messages, size_t workers, size_t bytes, size_t stride, const Grid& grid,
                    uint8_t* reply) {
  const size_t whole = bytes / kNibbleBytes * kNibbleBytes;
  Nibbles sums(grid.table);
  for (size_t at = 0; at < whole; at += kNibbleBytes) {
    sums.clear();
    for (size_t worker = 0; worker < workers; ++worker) sums.add(messages + worker * stride + at);
    __m256i* const out = reinterpret_cast<__m256i*>(reply + 2 * at);
    _mm256_storeu_si256(out, sums.half(false));
    _mm256_storeu_si256(out + 1, sums.half(true));
  }
  return 2 * whole;
}

// The same of sums that do not, of integers that do: as many workers' as fit are summed in bytes, then widened.
size_t sum_to_words(const uint8_t* messages, size_t workers, size_t bytes, size_t stride, const Grid& grid, int lane,
                    uint8_t* reply) {
  const size_t whole = bytes / kNibbleBytes * kNibbleBytes, together = 255 / size_t(grid.granularity);
  PackWords* const pack_sums = word_packer(lane);
  Nibbles some(grid.table);
  for (size_t at = 0; at < whole; at += kNibbleBytes) {
    __m256i sums[4] = {};
    for (size_t worker = 0; worker < workers;) {
      some.clear();
      for (const size_t end = std::min(workers, worker + together); worker < end; ++worker)
        some.add(messages + worker * stride + at);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const __m256i half = some.half(k / 2);
        const __m128i quarter = k % 2 ? _mm256_extracti128_si256(half, 1) : _mm256_castsi256_si128(half);
        sums[k] = _mm256_add_epi16(sums[k], _mm256_cvtepu8_epi16(quarter));
      }
    }
    alignas(32) uint16_t words[2 * kNibbleBytes];
    std::memcpy(words, sums, sizeof words);
    pack_sums(words, 2 * kNibbleBytes, reply + 2 * at / 8 * size_t(lane));
  }
  return 2 * whole;
}
#endif

template <class T>
void encode_block(const Encoding<T>& task, const Block& block, float norm, Quality* quality) {
  const size_t size = size_t(block.size);
  const uint32_t parameter = uint32_t(block.parameter);
  Scratch& room = task.room;
  load_exact(task.grad, task.residual, block, room.exact);
  room.signs.draw_for(branch(task.keys.shared, parameter), block);
  draw(branch(task.keys.own, parameter), uint32_t(block.offset / 2), size / 2, room.noise);
  room.signs.apply(room.exact, size, room.rotated);
  hadamard(room.rotated, size);
  const int clamped = round_block(task.lookup, norm, size, room);
  pack(room.codes, size, task.bits, task.codes_of(block));
  task.settle(block);
  hadamard(room.values, size);
  const float step = step_of(task.lookup.step, norm, size);
  for (size_t i = 0; i < size; ++i) room.rotated[i] = float(room.values[i]) * step;
  room.signs.apply(room.rotated, size, room.rotated);
  for (size_t i = 0; i < size; ++i) room.rotated[i] = room.exact[i] - room.rotated[i];
  if (task.left) std::copy_n(room.rotated, block.numel, task.left + block.start);
  if (quality)
    *quality = {squared_length(room.rotated, nullptr, size_t(block.numel)), squared_length(room.exact, nullptr, size),
                float(clamped), float(size)};
}

template <class T> void decode_block(const Decoding<T>& task, const Block& block, float norm) {
  const size_t size = size_t(block.size);
  Scratch& room = task.room;
  const int middle = task.count * task.granularity;
  const auto above_middle = [&](const auto* sums) {
    for (size_t i = 0; i < size; ++i) room.values[i] = 2 * int(sums[i]) - middle;
  };
  if (task.lane == 8) {
    above_middle(task.sums(block));
  } else {
    uint16_t* const words = reinterpret_cast<uint16_t*>(room.words);
    word_unpacker(task.lane)(task.sums(block), size, words);
    above_middle(words);
  }
  hadamard(room.values, size);
  room.signs.draw_for(branch(task.key, uint32_t(block.parameter)), block);
  const float step = step_of(task.step / float(task.count), norm, size);
  for (size_t i = 0; i < size; ++i) room.rotated[i] = float(room.values[i]) * step;
  room.signs.apply(room.rotated, size, room.rotated);
  narrow(room.rotated, task.grad + block.start, size_t(block.numel));
}

// What was written past the caches is there for other threads.
void finish_streams() {
#ifdef __AVX512BW__
  _mm_sfence();
#endif
}

template <class T>
void encode_blocks(const Encoding<T>& task, Chart chart, const float* norms, uint32_t every, Quality* quality) {
  const auto all_blocks = [&](auto fast) {
    for (size_t k = 0; k < chart.count; ++k) {
      quality[k] = {};
      Quality* const measured = (k + task.keys.own) % every == 0 ? quality + k : nullptr;
      if (!fast(chart.blocks[k], norms[k], measured)) encode_block(task, chart.blocks[k], norms[k], measured);
    }
  };
#ifdef __AVX512BW__
  const int granularity = task.lookup.granularity;
  if (FastEncoder<64, T>::serves(task)) {
    if (granularity < 64) return all_blocks(FastEncoder<64, T>(task));
    if (granularity < 128) return all_blocks(FastEncoder<128, T>(task));
    if (granularity < 256) return all_blocks(FastEncoder<256, T>(task));
  }
#endif
  all_blocks([](const Block&, float, Quality*) { return false; });
}

template <class T> void decode_blocks(const Decoding<T>& task, Chart chart, const float* norms) {
  for (size_t k = 0; k < chart.count; ++k) {
#ifdef __AVX512BW__
    if (decode_fast(task, chart.blocks[k], norms[k])) continue;
#endif
    decode_block(task, chart.blocks[k], norms[k]);
  }
}

}  // namespace

void thc_norms(const Gradient& grad, const float* residual, Chart chart, float* norms) {
  const std::unique_ptr<Scratch> room(new Scratch);  // not cleared: that takes longer than a small piece
  with_type(grad, [&](auto* values) {
    for (size_t k = 0; k < chart.count; ++k) {
      const Block& block = chart.blocks[k];
      const float* const grads = as_floats(values + block.start, size_t(block.numel), room->exact);
      const float* const more = residual ? residual + block.start : nullptr;
      const float norm = std::sqrt(squared_length(grads, more, size_t(block.numel)));
      norms[k] = norm <= 3.4028235e38f ? norm : float_of(0x7f800000);
    }
  });
}

void thc_encode(const Gradient& grad, const float* residual, const float* norms, Chart chart, const Grid& grid,
                Keys keys, uint32_t every, uint8_t* codes, size_t bytes, size_t stride, float* left,
                Quality* quality) {
  const std::unique_ptr<Scratch> room(new Scratch);
  const Lookup lookup(grid);
  with_type(grad, [&](auto* values) {
    using T = std::remove_pointer_t<decltype(values)>;
    encode_blocks(Encoding<T>{values, residual, lookup, grid.bits, keys, {codes, bytes, stride}, left, *room},
                  chart, norms, every, quality);
  });
  finish_streams();
}

void thc_combine(const uint8_t* messages, size_t workers, size_t bytes, size_t stride, const Grid& grid, int lane,
                 uint8_t* reply) {
  const size_t bits = size_t(grid.bits), width = bytes * 8 / bits;
  size_t at = 0;
#ifdef __AVX2__
  if (bits == 4 && lane == 8) at = sum_to_bytes(messages, workers, bytes, stride, grid, reply);
  else if (bits == 4 && grid.granularity < 256) at = sum_to_words(messages, workers, bytes, stride, grid, lane, reply);
#endif
  for (; at < width; at += 8) {
    uint32_t sums[8] = {}, codes[8];
    for (size_t worker = 0; worker < workers; ++worker) {
      unpack(messages + worker * stride + at * bits / 8, 8, grid.bits, codes);
      for (int i = 0; i < 8; ++i) sums[i] += uint32_t(grid.table[codes[i]]);
    }
    pack(sums, 8, lane, reply + at * size_t(lane) / 8);
  }
  const uint32_t count = uint32_t(workers);
  std::memcpy(reply + width * size_t(lane) / 8, &count, kCountBytes);
}

void thc_decode(const uint8_t* replies, size_t bytes, size_t stride, int count, const float* norms, Chart chart,
                const Grid& grid, int lane, uint32_t key, const Gradient& grad) {
  const std::unique_ptr<Scratch> room(new Scratch);
  const float step = float(2 * grid.threshold / grid.granularity);
  with_type(grad, [&](auto* values) {
    using T = std::remove_pointer_t<decltype(values)>;
    decode_blocks(Decoding<T>{{replies, bytes - kCountBytes, stride}, grid.granularity, lane, count, step, key, values,
                              *room},
                  chart, norms);
  });
  finish_streams();
}

}}  // namespace laconic::LACONIC_ISA
