// SignVote's selection, compiled once per instruction set; sign_vote/__init__.py is its specification.
//
// It reads the gradient once. A sample says which magnitudes are surely not among the largest; all others are
// collected on the way, a few more than are needed, and the exact threshold is found among them. Should the sample
// have been wrong, the threshold is found among all magnitudes, so that the result never depends on it.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "native/floats.h"
#include "native/instruction_set.h"
#include "native/streaming.h"
#include "native/vectors.h"

namespace laconic { namespace LACONIC_ISA {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
constexpr size_t kTile = 1024;
constexpr size_t kSmall = 4096;  // parts up to here are collected whole
constexpr size_t kSample = 1 << 14, kRun = 16;

// The gradient with what is remembered, tile by tile; a magnitude's order is that of its bits.
template <class T> class Exact {
 public:
  Exact(const T* grad, const float* old, float memory, float* left)
      : grad_(grad), old_(old), memory_(memory), left_(left) {}

  // `count` values from `start` on, at most a tile; they are in the new memory, where there is one.
  const float* compute(size_t start, size_t count) {
    compute(start, count, tile_);
    if (left_) stream(tile_, left_ + start, count);
    return tile_;
  }
  // How many values make the next tile begin with a cache line, if that is fewer than `count` and a tile.
  size_t tile(size_t start, size_t count) const {
    const size_t over = left_ ? reinterpret_cast<uintptr_t>(left_ + start) / sizeof(float) % kLine : 0;
    return std::min(count, over ? kLine - over : kTile);
  }
  void compute(size_t start, size_t count, float* out) const {
    if (!old_) return widen(grad_ + start, out, count);
    const float* const old = old_ + start;
    if constexpr (std::is_same_v<T, float>) {
      for (size_t i = 0; i < count; ++i) out[i] = old[i] * memory_ + grad_[start + i];
    } else {
      widen(grad_ + start, out, count);
      for (size_t i = 0; i < count; ++i) out[i] += old[i] * memory_;
    }
  }
  void clear(size_t place) {
    if (left_) left_[place] = 0.0f;
  }

 private:
  const T* grad_;
  const float* old_;
  float memory_;
  float* left_;
  alignas(64) float tile_[kTile];
};

// The smallest magnitude that is chosen, and how many of just that magnitude are.
struct Threshold {
  uint32_t magnitude;
  size_t ties;
  bool finite;
};

// The threshold of the `keep` largest; each(count) calls count(magnitude) for all of them.
template <class Each> Threshold find_threshold(size_t keep, Each each) {
  static constexpr int shifts[] = {20, 10, 0}, widths[] = {11, 10, 10};
  uint32_t known = 0, mask = 0;
  size_t left = keep;
  bool finite = true;
  for (int digit = 0; digit < 3; ++digit) {
    uint32_t counts[1 << 11] = {};
    const int shift = shifts[digit];
    const uint32_t last = (1u << widths[digit]) - 1;
    each([&](uint32_t magnitude) {
      if ((magnitude & mask) == known) ++counts[magnitude >> shift & last];
    });
    if (digit == 0)
      for (uint32_t bin = kInfinity >> shift; bin <= last; ++bin) finite = finite && !counts[bin];
    uint32_t bin = last;
    while (counts[bin] < left) left -= counts[bin--];
    known |= bin << shift;
    mask |= last << shift;
  }
  return {known, left, finite};
}

template <class T> class Selection {
 public:
  Selection(const Exact<T>& exact, int32_t* votes) : exact_(exact), votes_(votes) {}

  // Whether the part's values are finite; its votes are cast.
  bool select(const Part& part) {
    const size_t numel = size_t(part.numel), keep = size_t(part.keep), start = size_t(part.start);
    const uint32_t least = guess(start, numel, keep);
    const size_t room = 4 * keep + 2 * kSmall + 32 * (numel / kSample);  // a sample's margin is of a few in kSample
    const bool collected = collect(start, numel, least, std::min(numel, room));
    const auto each_collected = [this](auto take) {
      for (size_t i = 0; i < count_; ++i) take(size_t(places_[i]), bits_[i]);
    };
    const auto each = [=](auto take) {
      for (size_t i = 0, count; i < numel; i += count) {
        count = exact_.tile(start + i, numel - i);
        const float* const values = exact_.compute(start + i, count);
        for (size_t k = 0; k < count; ++k) take(i + k, bits_of(values[k]));
      }
    };
    if (collected && count_ >= keep) return choose(start, keep, each_collected);
    if (collected && least == 1) return choose(start, count_, each_collected);  // all others are zeros
    return choose(start, keep, each);
  }
  int64_t cast() const { return cast_; }

 private:
  // A magnitude that probably a few more than `keep` reach, at least 1.
  uint32_t guess(size_t start, size_t numel, size_t keep) {
    if (numel <= kSmall || 2 * keep >= numel) return 1;
    const size_t runs = std::min(kSample, std::max(kSmall / 2, numel / 64)) / kRun, step = numel / runs;
    sample_.resize(runs * kRun);
    for (size_t r = 0; r < runs; ++r) {
      float values[kRun];
      exact_.compute(start + r * step, kRun, values);
      for (size_t k = 0; k < kRun; ++k) sample_[r * kRun + k] = bits_of(values[k]) & kMagnitude;
    }
    const double expected = double(keep) / double(numel) * double(sample_.size());
    const size_t rank = size_t(expected + 4 * std::sqrt(expected) + 8);
    if (rank >= sample_.size()) return 1;
    std::nth_element(sample_.begin(), sample_.begin() + long(rank), sample_.end(), std::greater<>());
    return std::max(1u, sample_[rank]);
  }

  void reserve(size_t room) {
    if (room <= room_) return;
    places_.reset(new uint32_t[room]);
    bits_.reset(new uint32_t[room]);
    room_ = room;
  }
  // All that reach `least` are collected, unless there are more than `room`; the new memory has all values.
  bool collect(size_t start, size_t numel, uint32_t least, size_t room) {
    reserve(room + kTile);
    size_t count = 0;
    for (size_t i = 0, tile; i < numel; i += tile) {
      tile = exact_.tile(start + i, numel - i);
      const float* const values = exact_.compute(start + i, tile);
      if (count <= room) count = collect_tile(values, uint32_t(i), tile, int32_t(least), count);
    }
    count_ = count;
    return count <= room;
  }
  size_t collect_tile(const float* values, uint32_t place, size_t tile, int32_t least, size_t count) {
    uint32_t *const places = places_.get(), *const bits = bits_.get();
    const size_t whole = tile / 64 * 64;
    for (size_t i = 0; i < whole; i += 64)
      for (uint64_t mask = reaching(values + i, least); mask; mask &= mask - 1) {
        const size_t k = i + size_t(__builtin_ctzll(mask));
        places[count] = place + uint32_t(k);
        bits[count++] = bits_of(values[k]);
      }
    for (size_t k = whole; k < tile; ++k)
      if (int32_t(bits_of(values[k]) & kMagnitude) >= least) {
        places[count] = place + uint32_t(k);
        bits[count++] = bits_of(values[k]);
      }
    return count;
  }
  static uint64_t reaching(const float* values, int32_t least) {
    uint64_t mask = 0;
    for (int i = 0; i < 64; i += kLanes)
      mask |= lanes_from(load<Ints>(values + i) & int32_t(kMagnitude), least) << i;
    return mask;
  }

  // The votes of the `keep` largest of those that each(take) gives to take(place, bits), in order.
  template <class Each> bool choose(size_t start, size_t keep, Each each) {
    if (!keep) return true;
    const Threshold threshold =
        find_threshold(keep, [&](auto count) { each([&](size_t, uint32_t bits) { count(bits & kMagnitude); }); });
    const uint32_t least = threshold.magnitude;
    size_t ties = least ? threshold.ties : 0;  // a zero has nothing to say
    int64_t cast = cast_;
    each([&](size_t place, uint32_t bits) {
      const uint32_t magnitude = bits & kMagnitude;
      if (magnitude < least || (magnitude == least && !ties)) return;
      ties -= magnitude == least;
      votes_[cast++] = int32_t(2 * uint32_t(start + place) + (bits >> 31));
      exact_.clear(start + place);
    });
    cast_ = cast;
    return threshold.finite;
  }

  Exact<T> exact_;
  int32_t* votes_;
  int64_t cast_ = 0;
  size_t count_ = 0, room_ = 0;
  std::unique_ptr<uint32_t[]> places_, bits_;
  std::vector<uint32_t> sample_;
};

}  // namespace

int64_t sign_select(const Gradient& grad, const float* old, float memory, Parts parts, float* left, int32_t* votes) {
  return with_type(grad, [&](auto* values) -> int64_t {
    using T = std::remove_reference_t<decltype(*values)>;
    Selection<T> selection(Exact<T>(values, old, memory, left), votes);
    bool finite = true;
    for (size_t k = 0; k < parts.count && finite; ++k) finite = selection.select(parts.parts[k]);
    published();
    return finite ? selection.cast() : -1;
  });
}

}}  // namespace laconic::LACONIC_ISA
