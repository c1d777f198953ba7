// SignVote's kernels, compiled once per instruction set; kernels/sign_vote.py is their specification.
//
// Selection reads the gradient once. A sample says which magnitudes are surely not among the largest; all others are
// collected on the way, a few more than are needed, and the exact threshold is found among them. Should the sample
// have been wrong, the threshold is found among all magnitudes, so that the result never depends on it.
#include "sign_vote_kernels.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <type_traits>
#include <vector>

#include "floats.h"
#include "gaps.h"
#include "hash.h"

namespace laconic { namespace LACONIC_ISA {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
constexpr size_t kTile = 1024, kLine = 16;
constexpr size_t kSmall = 4096;  // parts up to here are collected whole
constexpr size_t kSample = 1 << 14, kRun = 16;

// Copies past the caches what will not be read again soon; whole cache lines from a cache line on.
inline void stream(const float* from, float* to, size_t count) {
  size_t i = 0;
#if defined(__AVX512F__) || defined(__AVX2__)
  if (reinterpret_cast<uintptr_t>(to) % (4 * kLine) == 0)
    for (; i + kLine <= count; i += kLine)
#if defined(__AVX512F__)
      _mm512_stream_ps(to + i, _mm512_load_ps(from + i));
#else
      _mm256_stream_ps(to + i, _mm256_load_ps(from + i)), _mm256_stream_ps(to + i + 8, _mm256_load_ps(from + i + 8));
#endif
#endif
  std::memcpy(to + i, from + i, (count - i) * sizeof(float));
}

// What was streamed is there for other threads.
inline void published() {
#if defined(__AVX512F__) || defined(__AVX2__)
  _mm_sfence();
#endif
}

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

// Votes and their weighted sum in one integer: the number of votes above, the sum below.
constexpr int kSumBits = 21;
inline int32_t voters_of(int32_t tally) { return (tally + (1 << (kSumBits - 1))) >> kSumBits; }
inline int32_t sum_of(int32_t tally) { return tally - (voters_of(tally) << kSumBits); }

constexpr size_t kStretch = 7680;  // coordinates whose tallies stay in the first-level cache; a multiple of five and 64

class Count {
 public:
  Count(Messages messages, const int64_t* weights, size_t numel, Coins coins, Counts* counts, Met* met)
      : messages_(messages), weights_(weights), numel_(numel), coins_(coins), counts_(counts), met_(met),
        ballots_(messages.count), spoken_(messages.count) {}

  Outcome run(uint8_t* reply) {
    bool lost = false;
    size_t votes = 0;
    for (size_t worker = 0; worker < ballots_.size(); ++worker) {
      const Fault fault = ballots_[worker].open(messages_.messages[worker], numel_);
      if (fault != Fault::none) return {0, fault, worker};
      lost = lost || ballots_[worker].lost();
      votes += ballots_[worker].votes();
    }
    *counts_ = {};
    std::fill(met_, met_ + ballots_.size(), Met{});
    decided_.reset(new int32_t[lost ? 0 : std::min(votes, numel_)]);
    const Outcome outcome = lost ? check() : count();
    if (outcome.fault != Fault::none) return outcome;
    Gaps gaps;
    return {lost ? write_lost(reply) : write_message(decided_.get(), size_t(counts_->decided), 0, numel_, gaps, reply),
            Fault::none, 0};
  }

 private:
  // Messages beside a lost one must be sound, too.
  Outcome check() {
    for (size_t worker = 0; worker < ballots_.size(); ++worker)
      if (!ballots_[worker].lost()) ballots_[worker].until(numel_, [](size_t, bool) {});
    return closed();
  }
  Outcome closed() const {
    for (size_t worker = 0; worker < ballots_.size(); ++worker)
      if (!ballots_[worker].lost() && ballots_[worker].close() != Fault::none)
        return {0, ballots_[worker].close(), worker};
    return {0, Fault::none, 0};
  }
  Outcome count() {
    for (size_t start = 0; start < numel_; start += kStretch) {
      const size_t stop = std::min(numel_, start + kStretch);
      std::memset(tallies_, 0, sizeof tallies_);
      for (size_t worker = 0; worker < ballots_.size(); ++worker) hear(worker, start, stop);
      for (size_t worker = 0; worker < ballots_.size(); ++worker) compare(worker);
      for (size_t at = start; at < stop; at += 64) decide(at, tallies_ + (at - start));
    }
    return closed();
  }
  void hear(size_t worker, size_t start, size_t stop) {
    std::vector<uint32_t>& spoken = spoken_[worker];
    spoken.resize(kStretch);
    uint32_t* to = spoken.data();
    const int32_t weight = int32_t(weights_[worker]), one = 1 << kSumBits;
    int32_t* const tallies = tallies_;
    Ballot ballot = ballots_[worker];  // a local one stays in registers
    ballot.until(stop, [&](size_t place, bool negative) {
      *to++ = uint32_t(2 * (place - start) + negative);
      tallies[place - start] += one + (negative ? -weight : weight);
    });
    ballots_[worker] = ballot;
    spoken.resize(size_t(to - spoken.data()));
  }
  void compare(size_t worker) {
    const int32_t weight = int32_t(weights_[worker]);
    Met met = met_[worker];
    for (const uint32_t vote : spoken_[worker]) {
      const int32_t sign = vote & 1 ? -1 : 1, others = sum_of(tallies_[vote >> 1]) - weight * sign;
      met.others += others != 0;
      met.against += others * sign < 0;
    }
    met_[worker] = met;
    counts_->votes += int64_t(spoken_[worker].size());
  }
  void decide(size_t at, const int32_t* tallies) {
    uint64_t mask = 0;
    for (int i = 0; i < 64; i += kLanes) mask |= lanes_from(load<Ints>(tallies + i), 1) << i;
    counts_->spoken += __builtin_popcountll(mask);
    for (; mask; mask &= mask - 1) {
      const size_t k = size_t(__builtin_ctzll(mask)), place = at + k;
      const int32_t sum = sum_of(tallies[k]);
      counts_->tied += sum == 0;
      if (sum == 0 && !coins_.count) continue;
      const bool negative = sum ? sum < 0 : toss(place);
      decided_[counts_->decided++] = int32_t(2 * place + negative);
    }
  }

  // Places come in order, so that coins that lie behind are left behind.
  bool toss(size_t place) {
    while (coins_.count > 1 && size_t(coins_.coins[1].start) <= place) ++coins_.coins, --coins_.count;
    const Coin& coin = *coins_.coins;
    const uint64_t number = uint64_t(coin.offset) + place - size_t(coin.start);
    return hashed(uint32_t(coin.key) + uint32_t(number / 32)) >> (number % 32) & 1;
  }

  Messages messages_;
  const int64_t* weights_;
  size_t numel_;
  Coins coins_;
  Counts* counts_;
  Met* met_;
  std::vector<Ballot> ballots_;
  std::vector<std::vector<uint32_t>> spoken_;
  std::unique_ptr<int32_t[]> decided_;
  alignas(64) int32_t tallies_[kStretch];
};

template <class T> T of(bool negative) {
  T value;
  narrow(negative ? -1.0f : 1.0f, value);
  return value;
}

template <class T> Outcome decode_values(Messages replies, size_t width, T* values, size_t numel) {
  if (numel) std::memset(static_cast<void*>(values), 0, numel * sizeof(T));
  const T signs[2] = {of<T>(false), of<T>(true)};
  bool lost = false;
  for (size_t worker = 0; worker < replies.count; ++worker) {
    const size_t start = std::min(numel, worker * width), count = std::min(width, numel - start);
    Ballot ballot;
    Fault fault = ballot.open(replies.messages[worker], count);
    if (fault == Fault::none && ballot.lost()) lost = true;
    else if (fault == Fault::none) {
      T* const to = values + start;
      ballot.until(count, [=](size_t place, bool negative) { to[place] = signs[negative]; });
      fault = ballot.close();
    }
    if (fault != Fault::none) return {0, fault, worker};
  }
  T nan;
  narrow(NAN, nan);
  if (lost) std::fill(values, values + numel, nan);
  return {0, Fault::none, 0};
}

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

void sign_pack(const int32_t* votes, size_t count, size_t numel, size_t width, size_t shards, uint8_t* messages,
               size_t room, int64_t* sizes) {
  Gaps gaps;
  const int32_t *first = votes, *const end = votes + count;
  for (size_t k = 0; k < shards; ++k) {
    const size_t start = std::min(numel, k * width), stop = std::min(numel, start + width);
    const int32_t* const last =
        std::lower_bound(first, end, 2 * stop, [](int32_t vote, size_t limit) { return size_t(vote) < limit; });
    sizes[k] = int64_t(write_message(first, size_t(last - first), start, stop - start, gaps, messages + k * room));
    first = last;
  }
}

Outcome sign_combine(Messages messages, const int64_t* weights, size_t numel, Coins coins, uint8_t* reply,
                     Counts* counts, Met* met) {
  return std::make_unique<Count>(messages, weights, numel, coins, counts, met)->run(reply);
}

Outcome sign_decode(Messages replies, size_t width, const Gradient& grad, size_t numel) {
  return with_type(grad, [&](auto* values) { return decode_values(replies, width, values, numel); });
}

}}  // namespace laconic::LACONIC_ISA
