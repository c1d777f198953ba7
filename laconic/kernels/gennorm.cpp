// GenNorm's kernels, compiled once per instruction set; kernels/gennorm.py is their specification.
//
// All go tile by tile, so that levels are counted, and decoded levels summed, while they are in the first-level cache.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "floats.h"
#include "gennorm_kernels.h"
#include "sealed.h"
#include "streaming.h"
#include "vectors.h"

namespace laconic { namespace LACONIC_ISA {
namespace {

constexpr size_t kTile = 2048, kBlock = 64;
constexpr size_t kSampled = 1 << 16;  // parts from here on are counted in part
constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
static_assert(kTile % kMostLanes == 0, "tiles are whole rows");

template <class T>
inline void exact(const T* grad, const Residual& residual, size_t start, size_t count, float* tile) {
  widen(grad + start, tile, count);
  if (residual.old)
    for (size_t i = 0; i < count; ++i) tile[i] = residual.old[start + i] * residual.memory + tile[i];
}

typedef double Doubles __attribute__((vector_size(4 * kLanes)));
typedef float HalfFloats __attribute__((vector_size(2 * kLanes)));

// How many values whole vectors take; those behind the last are zeros.
inline size_t filled(float* tile, size_t count) {
  const size_t whole = (count + kLanes - 1) / kLanes * kLanes;
  std::fill(tile + count, tile + whole, 0.0f);
  return whole;
}

class Sums {
 public:
  void add(float* tile, size_t count) {
    const size_t whole = filled(tile, count);
    for (size_t i = 0; i < whole; i += kLanes)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const Doubles value = __builtin_convertvector(load<HalfFloats>(tile + i + half * kLanes / 2), Doubles);
        sum_[half] += value < 0.0 ? -value : value;
        squares_[half] += value * value;
      }
  }
  Moments total() const {
    Moments moments = {0, 0};
    for (int k = 0; k < kLanes; ++k)
      moments.sum += sum_[k % 2][k / 2], moments.squares += squares_[k % 2][k / 2];
    return moments;
  }

 private:
  Doubles sum_[2] = {}, squares_[2] = {};
};

// Levels from values and back. A float's bits, less those behind the mantissa, count the levels from the smallest
// normal one on; below it, adding 2^23 steps rounds to steps.
class Levels {
 public:
  explicit Levels(Minifloat format)
      : shift_(23 - format.mantissa),
        base_(uint32_t(127 - format.bias) << format.mantissa),
        zero_(format.zero()),
        largest_((format.zero() + base_) << shift_),
        normal_(uint32_t(128 - format.bias) << 23),
        step_(std::ldexp(1.0f, 1 - format.bias - format.mantissa)),
        magic_(std::ldexp(step_, 23)) {}

  // Codes, and what they leave of the tile; whether all of it is finite.
  bool quantize(float* tile, size_t count, LevelScale scale, uint8_t* codes) const {
    const size_t whole = filled(tile, count);
    Ints worst = {};
    for (size_t i = 0; i < whole; i += kLanes) {
      const Floats values = load<Floats>(tile + i), scaled = values * scale.scale;
      const Ints sign = Ints(scaled) >> 31;
      worst = larger(worst, Ints(values) & int32_t(kMagnitude));
      const Ints magnitude = smaller(Ints(scaled) & int32_t(kMagnitude), Ints{} + int32_t(largest_));
      const Ints rounded = (magnitude + ((1 << (shift_ - 1)) - 1) + ((magnitude >> shift_) & 1)) >> shift_;
      const Floats stepped = Floats(magnitude) + magic_;
      const Ints small = magnitude < int32_t(normal_);
      const Ints place = small ? Ints(stepped) - Ints(all(magic_)) : rounded - int32_t(base_);
      const Floats level = Floats(small ? Ints(stepped - magic_) : rounded << shift_);
      to_bytes(int32_t(zero_) + ((place ^ sign) - sign), codes + i);
      store(tile + i, values - Floats(Ints(level) | (sign & INT32_MIN)) * scale.inverse);
    }
    int32_t most = 0;
    for (int k = 0; k < kLanes; ++k) most = std::max(most, worst[k]);
    return uint32_t(most) < kInfinity;
  }
  // Adds what the codes say; whether all of them are levels.
  bool add(uint8_t* codes, size_t count, float inverse, float* tile) const {
    const size_t whole = (count + kLanes - 1) / kLanes * kLanes;
    std::fill(codes + count, codes + whole, uint8_t(0));
    Ints most = {};
    for (size_t i = 0; i < whole; i += kLanes) {
      const Ints from_zero = from_bytes(codes + i) - int32_t(zero_);
      const Ints sign = from_zero >> 31, place = (from_zero ^ sign) - sign;
      most = larger(most, place);
      const Ints bits = (place + int32_t(base_)) << shift_;
      const Floats steps = __builtin_convertvector(place, Floats) * step_;
      const Floats level = Floats(bits < int32_t(normal_) ? Ints(steps) : bits);
      store(tile + i, load<Floats>(tile + i) + Floats(Ints(level) | (sign & INT32_MIN)) * inverse);
    }
    bool known = true;
    for (int k = 0; k < kLanes; ++k) known &= most[k] <= int32_t(zero_);
    return known;
  }

 private:
  static Ints larger(Ints a, Ints b) { return a > b ? a : b; }
  static Ints smaller(Ints a, Ints b) { return a < b ? a : b; }

  int shift_;
  uint32_t base_, zero_, largest_, normal_;
  float step_, magic_;
};

// Whether a block of a large part is counted.
inline bool counted(size_t block) { return !(uint32_t(block) * 0x9e3779b1u >> 29); }

// Counts of symbols; four tables, so that equal neighbors do not wait for each other.
class Histogram {
 public:
  void add(const uint8_t* symbols, size_t at, size_t count, bool sampled) {
    for (size_t i = 0; i < count; i += kBlock)
      if (!sampled || counted((at + i) / kBlock)) add(symbols + i, std::min(kBlock, count - i));
  }
  void total(LevelCounts& counts) const {
    for (size_t s = 0; s < kSymbols; ++s) counts[s] = tables_[0][s] + tables_[1][s] + tables_[2][s] + tables_[3][s];
  }

 private:
  void add(const uint8_t* symbols, size_t count) {
    size_t i = 0;
    for (; i + 4 <= count; i += 4)
      for (size_t k = 0; k < 4; ++k) ++tables_[k][symbols[i + k]];
    for (; i < count; ++i) ++tables_[0][symbols[i]];
  }

  int32_t tables_[4][kSymbols] = {};
};

template <class T> class Quantizing {
 public:
  Quantizing(const T* grad, const Residual& residual, Minifloat format)
      : grad_(grad), residual_(residual), levels_(format) {}

  // How many symbols were written.
  size_t quantize(LevelSpan part, LevelScale scale, uint8_t* symbols, LevelCounts& counts) {
    const bool spoken = scale.scale > 0, sampled = size_t(part.count) >= kSampled;
    Histogram histogram;
    for (size_t at = 0; at < size_t(part.count); at += kTile) {
      const size_t start = size_t(part.start) + at, count = std::min(kTile, size_t(part.count) - at);
      exact(grad_, residual_, start, count, tile_);
      finite_ &= spoken ? levels_.quantize(tile_, count, scale, codes_) : all_finite(tile_, count);
      if (residual_.left) stream(tile_, residual_.left + start, count);
      if (!spoken) continue;
      histogram.add(codes_, at, count, sampled);
      std::memcpy(symbols + at, codes_, count);
    }
    histogram.total(counts);
    return spoken ? size_t(part.count) : 0;
  }
  bool finite() const { return finite_; }

 private:
  static bool all_finite(const float* tile, size_t count) {
    bool finite = true;
    for (size_t i = 0; i < count; ++i) finite &= (bits_of(tile[i]) & kMagnitude) < kInfinity;
    return finite;
  }

  const T* grad_;
  const Residual& residual_;
  Levels levels_;
  bool finite_ = true;
  alignas(64) float tile_[kTile];
  alignas(64) uint8_t codes_[kTile];
};

// One message that is being read, part by part.
class Decoding {
 public:
  explicit Decoding(const Leveled& message) : message_(message) {}

  CodeFault open(size_t parts) {
    size_t count = 0;
    for (size_t k = 0; k < parts; ++k) count += message_.parts[k].book >= 0 ? size_t(message_.parts[k].count) : 0;
    return unsealing_.open(message_.bytes, message_.sealing, count);
  }
  void begin(size_t part, const AnsBook* books) {
    part_ = part;
    if (book() >= 0) table_ = unsealing_.table(books[book()]);
  }
  // Adds the part's next levels to the tile.
  CodeFault add(const Levels& levels, size_t count, float* tile) {
    if (book() < 0) return CodeFault::none;
    const CodeFault fault = unsealing_.take(codes_, count, table_.get());
    if (fault != CodeFault::none) return fault;
    return levels.add(codes_, count, message_.inverses[part_], tile) ? CodeFault::none : CodeFault::unknown;
  }
  CodeFault close() const { return unsealing_.close(); }

 private:
  int64_t book() const { return message_.parts[part_].book; }

  Leveled message_;
  Unsealing unsealing_;
  size_t part_ = 0;
  std::unique_ptr<PopTable> table_;
  alignas(64) uint8_t codes_[kTile];
};

template <class T>
LevelFault average(std::vector<Decoding>& all, const LevelPart* parts, size_t count, const AnsBook* books,
                   Minifloat format, T* out) {
  const Levels levels(format);
  alignas(64) float tile[kTile];
  for (size_t k = 0; k < all.size(); ++k)
    if (const CodeFault fault = all[k].open(count); fault != CodeFault::none) return {fault, k};
  for (size_t p = 0; p < count; ++p) {
    for (Decoding& each : all) each.begin(p, books);
    for (size_t at = 0; at < size_t(parts[p].count); at += kTile) {
      const size_t here = std::min(kTile, size_t(parts[p].count) - at);
      std::fill_n(tile, kTile, 0.0f);
      for (size_t k = 0; k < all.size(); ++k)
        if (const CodeFault fault = all[k].add(levels, here, tile); fault != CodeFault::none) return {fault, k};
      const float messages = float(all.size());
      for (size_t i = 0; i < here; ++i) tile[i] /= messages;
      narrow(tile, out + parts[p].start + at, here);
    }
  }
  for (size_t k = 0; k < all.size(); ++k)
    if (const CodeFault fault = all[k].close(); fault != CodeFault::none) return {fault, k};
  return {CodeFault::none, 0};
}

}  // namespace

void gennorm_moments(Gradient grad, Residual residual, const LevelSpan* parts, size_t count, Moments* moments) {
  with_type(grad, [&](const auto* values) {
    alignas(64) float tile[kTile];
    for (size_t k = 0; k < count; ++k) {
      Sums sums;
      for (size_t at = 0; at < size_t(parts[k].count); at += kTile) {
        const size_t here = std::min(kTile, size_t(parts[k].count) - at);
        exact(values, residual, size_t(parts[k].start) + at, here, tile);
        sums.add(tile, here);
      }
      moments[k] = sums.total();
    }
  });
}

bool gennorm_quantize(Gradient grad, Residual residual, const LevelSpan* parts, size_t count, const LevelScale* scales,
                      Minifloat format, uint8_t* symbols, LevelCounts* counts) {
  const bool finite = with_type(grad, [&](const auto* values) {
    Quantizing quantizing(values, residual, format);
    for (size_t k = 0; k < count; ++k) symbols += quantizing.quantize(parts[k], scales[k], symbols, counts[k]);
    return quantizing.finite();
  });
  published();
  return finite;
}

LevelFault gennorm_average(const Leveled* messages, size_t count, size_t parts, const AnsBook* books, Minifloat format,
                           Gradient out) {
  std::vector<Decoding> all;
  all.reserve(count);
  for (size_t k = 0; k < count; ++k) all.emplace_back(messages[k]);
  return with_type(out, [&](auto* values) { return average(all, messages[0].parts, parts, books, format, values); });
}

}}  // namespace laconic::LACONIC_ISA
