// SignVote's messages and vote, compiled once per instruction set; sign_vote/__init__.py is their specification.
#include "native/instruction_set.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "native/floats.h"
#include "sign_vote/cpu_ternary.h"
#include "native/hash.h"

namespace laconic { namespace LACONIC_ISA {
namespace {

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
