// GenNorm's kernels, compiled once per instruction set; gennorm/__init__.py is their specification.
//
// All go tile by tile, so that levels are counted, and decoded levels summed, while they are in the first-level cache.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "native/floats.h"
#include "native/instruction_set.h"
#include "gennorm/cpu_levels.h"
#include "coding/cpu_sealed.h"
#include "native/streaming.h"
#include "native/vectors.h"

namespace laconic { namespace LACONIC_ISA {
namespace {

constexpr size_t kTile = 4096, kBlock = 64;
constexpr size_t kDecoded = 512;  // in tiles of these, memory takes values while symbols are popped
constexpr size_t kSampled = 1 << 16;  // parts from here on are counted in part
constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
static_assert(kTile % kMostLanes == 0 && kDecoded % kMostLanes == 0, "tiles are whole rows");

// Values in single precision: where they are, or in the tile if they must be widened.
inline const float* widened(const float* values, size_t, float*) { return values; }
template <class T> inline const float* widened(const T* values, size_t count, float* tile) {
  widen(values, tile, count);
  return tile;
}

constexpr size_t whole_vectors(size_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// The same, followed by zeros up to a whole vector.
inline const float* filled(const float* values, size_t count, float* tile) {
  if (!values || count % kLanes == 0) return values;
  std::memmove(tile, values, count * sizeof(float));
  std::fill(tile + count, tile + whole_vectors(count), 0.0f);
  return tile;
}

// memory · old + grad, of a tile at a time, in whole vectors.
template <class T> class Exact {
 public:
  Exact(const T* grad, const Residual& residual) : grad_(grad), residual_(residual) {}

  // use(values), where values(i) are those from coordinate start + i on.
  template <class Use> void tile(size_t start, size_t count, Use use) {
    const float* const grad = filled(widened(grad_ + start, count, grads_), count, grads_);
    const float* const old = residual_.old ? filled(residual_.old + start, count, olds_) : nullptr;
    const float memory = residual_.memory;
    if (old) use([=](size_t i) { return load<Floats>(old + i) * memory + load<Floats>(grad + i); });
    else use([=](size_t i) { return load<Floats>(grad + i); });
  }

 private:
  const T* grad_;
  const Residual& residual_;
  alignas(64) float grads_[kTile], olds_[kTile];
};

typedef double Doubles __attribute__((vector_size(4 * kLanes)));
typedef float HalfFloats __attribute__((vector_size(2 * kLanes)));

class Sums {
 public:
  template <class Values> void add(Values values, size_t count) {
    for (size_t i = 0; i < count; i += kLanes) {
      const Floats own = values(i);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const Doubles value = __builtin_convertvector(half_of(own, half), Doubles);
        sum_[half] += value < 0.0 ? -value : value;
        squares_[half] += value * value;
      }
    }
  }
  Moments total() const {
    Moments moments = {0, 0};
    for (int k = 0; k < kLanes; ++k)
      moments.sum += sum_[k % 2][k / 2], moments.squares += squares_[k % 2][k / 2];
    return moments;
  }

 private:
  static HalfFloats half_of(Floats v, int half) {
    HalfFloats own;
    std::memcpy(&own, reinterpret_cast<const char*>(&v) + half * sizeof own, sizeof own);
    return own;
  }

  Doubles sum_[2] = {}, squares_[2] = {};
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
      : exact_(grad, residual), left_(residual.left), levels_(format) {}

  // How many symbols were written.
  size_t quantize(LevelSpan part, LevelScale scale, uint8_t* symbols, LevelCounts& counts) {
    const bool spoken = scale.scale > 0, sampled = size_t(part.count) >= kSampled;
    Histogram histogram;
    for (size_t at = 0; at < size_t(part.count); at += kTile) {
      const size_t start = size_t(part.start) + at, count = std::min(kTile, size_t(part.count) - at);
      if (!spoken) {
        keep(start, count);
        continue;
      }
      quantize(start, count, scale, symbols + at);
      histogram.add(symbols + at, at, count, sampled);
    }
    histogram.total(counts);
    return spoken ? size_t(part.count) : 0;
  }
  bool finite() const { return finite_; }

 private:
  void quantize(size_t start, size_t count, LevelScale scale, uint8_t* symbols) {
    float* const left = left_ ? left_ + start : nullptr;
    const bool whole = count % kLanes == 0;
    exact_.tile(start, count, [&](auto values) {
      if (whole && left && streamable(left))
        finite_ &= levels_.quantize(values, count, scale, symbols, [=](size_t i, Floats v) { stream(left + i, v); });
      else
        finite_ &= levels_.quantize(values, whole_vectors(count), scale, whole ? symbols : codes_,
                                    [this](size_t i, Floats v) { store(tile_ + i, v); });
    });
    if (!whole) std::memcpy(symbols, codes_, count);
    if (left && !(whole && streamable(left))) stream(tile_, left, count);
  }
  // Zeros, or what is not finite, are left as they are.
  void keep(size_t start, size_t count) {
    exact_.tile(start, count, [&](auto values) {
      Floats wrong = {};
      for (size_t i = 0; i < count; i += kLanes) {
        store(tile_ + i, values(i));
        wrong += values(i) * 0.0f;
      }
      finite_ &= all_zero(wrong);
    });
    if (left_) stream(tile_, left_ + start, count);
  }

  Exact<T> exact_;
  float* left_;
  Levels levels_;
  bool finite_ = true;
  alignas(64) float tile_[kTile];
  alignas(64) uint8_t codes_[kTile];
};

// One message that is being read, part by part.
class Decoding {
 public:
  Decoding(const Leveled& message, Minifloat format) : message_(message), values_(format) {}

  CodeFault open(size_t parts) {
    size_t count = 0;
    for (size_t k = 0; k < parts; ++k) count += message_.parts[k].book >= 0 ? size_t(message_.parts[k].count) : 0;
    return unsealing_.open(message_.bytes, message_.sealing, count);
  }
  void begin(size_t part, const AnsBook* books) {
    part_ = part;
    if (book() >= 0) table_ = unsealing_.table(books[book()]);
  }
  // put(i, sum), where a sum is what was there before and the part's next values, from the i-th on.
  template <class Before, class Put> CodeFault add(size_t count, Before before, Put put) {
    const size_t whole = whole_vectors(count);
    if (book() < 0) {
      for (size_t i = 0; i < whole; i += kLanes) put(i, before(i));
      return CodeFault::none;
    }
    const CodeFault fault = unsealing_.take(codes_, count, table_.get());
    if (fault != CodeFault::none) return fault;
    if (!values_.known(codes_, count)) return CodeFault::unknown;
    std::fill(codes_ + count, codes_ + whole, uint8_t(0));
    const auto sum = [&](auto value) {
      for (size_t i = 0; i < whole; i += kLanes) put(i, before(i) + value(i));
    };
    const float inverse = message_.inverses[part_], unit = values_.unit(), factor = unit * inverse;
    if (std::isnormal(factor)) sum([&](size_t i) { return values_(codes_ + i) * factor; });  // the factor is exact
    else sum([&](size_t i) { return values_(codes_ + i) * unit * inverse; });
    return CodeFault::none;
  }
  CodeFault close() { return unsealing_.close(); }

 private:
  int64_t book() const { return message_.parts[part_].book; }

  Leveled message_;
  Unsealing unsealing_;
  LevelValues values_;
  size_t part_ = 0;
  std::unique_ptr<PopTable> table_;
  alignas(64) uint8_t codes_[kTile];
};

inline void written(const float* tile, float* out, size_t count) { stream(tile, out, count); }
template <class T> inline void written(const float* tile, T* out, size_t count) { narrow(tile, out, count); }

class Averaging {
 public:
  explicit Averaging(std::vector<Decoding>& all) : all_(all) {}

  template <class T> LevelFault average(const LevelPart* parts, size_t count, const AnsBook* books, T* out) {
    LevelFault fault = each([&](Decoding& one) { return one.open(count); });
    for (size_t p = 0; p < count && fault.fault == CodeFault::none; ++p) {
      for (Decoding& one : all_) one.begin(p, books);
      fault = average(size_t(parts[p].count), out + parts[p].start);
    }
    return fault.fault == CodeFault::none ? each([](Decoding& one) { return one.close(); }) : fault;
  }

 private:
  static Floats nothing(size_t) { return Floats{}; }
  auto in_tile() {
    return [this](size_t i, Floats sum) { store(tile_ + i, sum); };
  }
  // Whether sums may go where they belong, without a detour.
  static bool direct(const float* out, size_t count) { return count % kLanes == 0 && streamable(out); }
  template <class T> static bool direct(const T*, size_t) { return false; }
  static auto into(float* out) {
    return [=](size_t i, Floats sum) { stream(out + i, sum); };
  }
  template <class T> static auto into(T*) {
    return [](size_t, Floats) {};
  }

  // The first fault that a message has.
  template <class Do> LevelFault each(Do something) {
    for (size_t k = 0; k < all_.size(); ++k)
      if (const CodeFault fault = something(all_[k]); fault != CodeFault::none) return {fault, k};
    return {CodeFault::none, 0};
  }
  template <class T> LevelFault average(size_t count, T* out) {
    LevelFault fault = {CodeFault::none, 0};
    for (size_t at = 0; at < count && fault.fault == CodeFault::none; at += kDecoded)
      fault = average_tile(std::min(kDecoded, count - at), out + at);
    return fault;
  }
  template <class T> LevelFault average_tile(size_t count, T* out) {
    if (all_.size() == 1 && direct(out, count)) return {all_[0].add(count, nothing, into(out)), 0};
    const LevelFault fault = each([&](Decoding& one) {
      const auto before = [this](size_t i) { return load<Floats>(tile_ + i); };
      return &one == &all_[0] ? one.add(count, nothing, in_tile()) : one.add(count, before, in_tile());
    });
    const float messages = float(all_.size());
    if (all_.size() > 1)
      for (size_t i = 0; i < count; ++i) tile_[i] /= messages;
    written(tile_, out, count);
    return fault;
  }

  std::vector<Decoding>& all_;
  alignas(64) float tile_[kTile];
};

}  // namespace

void gennorm_moments(Gradient grad, Residual residual, const LevelSpan* parts, size_t count, Moments* moments) {
  with_type(grad, [&](const auto* values) {
    Exact exact(values, residual);
    for (size_t k = 0; k < count; ++k) {
      Sums sums;
      for (size_t at = 0; at < size_t(parts[k].count); at += kTile) {
        const size_t here = std::min(kTile, size_t(parts[k].count) - at);
        exact.tile(size_t(parts[k].start) + at, here, [&](auto own) { sums.add(own, here); });
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
  for (size_t k = 0; k < count; ++k) all.emplace_back(messages[k], format);
  Averaging averaging(all);
  const LevelFault fault =
      with_type(out, [&](auto* values) { return averaging.average(messages[0].parts, parts, books, values); });
  published();
  return fault;
}

}}  // namespace laconic::LACONIC_ISA
