// Ternary vectors as bytes; numerics/ternary.py is the specification.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>

#include "sign_vote/cpu.h"

namespace laconic { namespace LACONIC_ISA {

enum Form { kVotes, kRest, kTrits, kLost };
constexpr int kFormStep = 32, kMostLowBits = 30;
constexpr size_t kTritsPerByte = 5;

inline size_t bytes_for(size_t bits) { return (bits + 7) / 8; }
inline size_t trit_bytes(size_t numel) { return (numel + kTritsPerByte - 1) / kTritsPerByte; }

inline void write_header(uint8_t* message, Form form, int b, uint32_t count) {
  message[0] = uint8_t(form * kFormStep + b);
  std::memcpy(message + 1, &count, 4);
}

inline size_t write_lost(uint8_t* message) {
  write_header(message, kLost, 0, 0);
  return kHeader;
}

// Bits in a row, the lowest of a byte first.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* to) : at_(to) {}
  void put(uint32_t bits, int count) {
    word_ |= uint64_t(bits) << used_;
    used_ += count;
    if (used_ < 32) return;
    std::memcpy(at_, &word_, 4);
    at_ += 4;
    word_ >>= 32;
    used_ -= 32;
  }
  void finish() { std::memcpy(at_, &word_, bytes_for(size_t(used_))); }

 private:
  uint8_t* at_;
  uint64_t word_ = 0;
  int used_ = 0;
};

class BitReader {
 public:
  BitReader() = default;
  BitReader(const uint8_t* from, size_t bytes) : from_(from), bytes_(bytes) {}
  uint32_t take(int count) {
    const uint32_t bits = uint32_t(window() & ((uint64_t(1) << count) - 1));
    at_ += size_t(count);
    return bits;
  }
  // How many zeros stand before the next one, which is there.
  uint64_t zeros() {
    const size_t start = at_;
    uint64_t bits = window();
    for (; !bits; bits = window()) at_ += kWindow;
    at_ += size_t(__builtin_ctzll(bits));
    return at_++ - start;
  }

 private:
  static constexpr int kWindow = 57;
  // The next bits; zeros behind the end.
  uint64_t window() const {
    const size_t byte = at_ / 8;
    uint64_t word = 0;
    if (byte + 8 <= bytes_) std::memcpy(&word, from_ + byte, 8);
    else if (byte < bytes_) std::memcpy(&word, from_ + byte, bytes_ - byte);
    return word >> (at_ % 8) << (64 - kWindow) >> (64 - kWindow);
  }

  const uint8_t* from_ = nullptr;
  size_t bytes_ = 0, at_ = 0;
};

// The gaps between places, and how many bits their code takes with the best parameter.
class Gaps {
 public:
  // Of the places in a list of votes that begin at coordinate `base`.
  void between(const int32_t* votes, size_t count, size_t base) {
    reserve(count);
    uint32_t next = uint32_t(base);
    for (size_t j = 0; j < count; ++j) {
      const uint32_t place = uint32_t(votes[j]) >> 1;
      gaps_[j] = place - next;
      next = place + 1;
    }
    choose();
  }
  // Of all other places among `numel`.
  void between_others(const int32_t* votes, size_t count, size_t base, size_t numel) {
    reserve(numel - count);
    size_t j = 0, run = 0, next = base;
    for (size_t k = 0; k <= count; ++k) {
      const size_t place = k < count ? size_t(uint32_t(votes[k]) >> 1) : base + numel;
      for (; next < place; ++next, run = 0) gaps_[j++] = uint32_t(run);
      ++next;
      ++run;
    }
    choose();
  }

  size_t count() const { return count_; }
  int b() const { return b_; }
  size_t bytes() const { return bytes_for(count_ * size_t(b_)) + bytes_for(high_bits_); }
  void write(uint8_t* to) const {
    BitWriter low(to);
    uint8_t* const high = to + bytes_for(count_ * size_t(b_));
    std::memset(high, 0, bytes_for(high_bits_));
    const uint32_t mask = (uint32_t(1) << b_) - 1;
    size_t at = 0;
    for (size_t j = 0; j < count_; ++j) {
      const uint32_t gap = gaps_[j];
      low.put(gap & mask, b_);
      at += gap >> b_;
      high[at / 8] |= uint8_t(1 << at % 8);
      ++at;
    }
    low.finish();
  }

 private:
  void reserve(size_t count) {
    if (count > room_) gaps_.reset(new uint32_t[room_ = count]);
    count_ = count;
  }
  uint64_t shifted(int b) const {
    uint64_t sum = 0;
    for (size_t j = 0; j < count_; ++j) sum += gaps_[j] >> b;
    return sum;
  }
  // Whether b + 1 takes fewer bits than b; once it does not, it never does again.
  bool too_small(int b) const { return count_ < shifted(b) - shifted(b + 1); }
  void choose() {
    b_ = 0;
    if (count_) {
      const uint64_t mean = shifted(0) / count_;  // the best parameter is near its logarithm
      b_ = mean ? 63 - __builtin_clzll(mean) : 0;
      while (b_ && !too_small(b_ - 1)) --b_;
      while (too_small(b_)) ++b_;
    }
    high_bits_ = size_t(shifted(b_)) + count_;
  }

  std::unique_ptr<uint32_t[]> gaps_;
  size_t room_ = 0, count_ = 0, high_bits_ = 0;
  int b_ = 0;
};

inline void write_signs(const int32_t* votes, size_t count, uint8_t* to) {
  size_t j = 0;
  for (; j + 8 <= count; j += 8) {
    uint32_t byte = 0;
    for (int k = 0; k < 8; ++k) byte |= uint32_t(votes[j + size_t(k)] & 1) << k;
    *to++ = uint8_t(byte);
  }
  if (j == count) return;
  uint32_t byte = 0;
  for (int k = 0; j < count; ++j, ++k) byte |= uint32_t(votes[j] & 1) << k;
  *to = uint8_t(byte);
}

inline size_t write_trits(const int32_t* votes, size_t count, size_t base, size_t numel, uint8_t* message) {
  static constexpr uint8_t powers[kTritsPerByte] = {1, 3, 9, 27, 81};
  write_header(message, kTrits, 0, 0);
  std::memset(message + kHeader, 0, trit_bytes(numel));
  for (size_t j = 0; j < count; ++j) {
    const size_t place = (uint32_t(votes[j]) >> 1) - base;
    message[kHeader + place / kTritsPerByte] += uint8_t((1 + (votes[j] & 1)) * powers[place % kTritsPerByte]);
  }
  return kHeader + trit_bytes(numel);
}

// The message of the votes for `numel` coordinates from `base` on; it takes no more than trits would.
inline size_t write_message(const int32_t* votes, size_t count, size_t base, size_t numel, Gaps& gaps,
                            uint8_t* message) {
  const Form form = 2 * count > numel ? kRest : kVotes;
  if (form == kVotes) gaps.between(votes, count, base);
  else gaps.between_others(votes, count, base, numel);
  const size_t body = bytes_for(count) + gaps.bytes();
  if (body > trit_bytes(numel)) return write_trits(votes, count, base, numel, message);
  write_header(message, form, gaps.b(), uint32_t(gaps.count()));
  write_signs(votes, count, message + kHeader);
  gaps.write(message + kHeader + bytes_for(count));
  return kHeader + body;
}

// A message that is read from its first vote to its last.
class Ballot {
 public:
  Fault open(Message message, size_t numel) {
    if (message.size < kHeader) return Fault::cut_short;
    if (message.size > room_for(numel)) return Fault::longer;  // so that no sum of gaps overflows, either
    form_ = message.bytes[0] / kFormStep;
    b_ = message.bytes[0] % kFormStep;
    uint32_t count;
    std::memcpy(&count, message.bytes + 1, 4);
    const uint8_t* const body = message.bytes + kHeader;
    const size_t size = message.size - kHeader;
    numel_ = numel;
    if (form_ == kTrits) return b_ || count ? Fault::header : open_trits(body, size);
    if (form_ == kLost && !b_ && !count && !size) return Fault::none;
    if (form_ != kVotes && form_ != kRest) return Fault::form;
    if (count > numel || b_ > kMostLowBits) return Fault::header;
    return open_listed(body, size, count);
  }
  bool lost() const { return form_ == kLost; }
  size_t votes() const { return form_ == kTrits ? numel_ : form_ == kRest ? numel_ - listed_ : listed_; }

  // Calls visit(place, negative) for every vote before coordinate `limit`, in order, that was not visited yet.
  // A limit is a multiple of five, or the number of coordinates.
  template <class Visit> void until(size_t limit, Visit visit) {
    if (form_ == kVotes) return votes_until(limit, visit);
    if (form_ == kRest) return others_until(limit, visit);
    trits_until(limit, visit);
  }
  // What is wrong with the places, when all were visited.
  Fault close() const { return form_ <= kRest && j_ < listed_ ? Fault::beyond : fault_; }

 private:
  Fault open_trits(const uint8_t* body, size_t size) {
    if (size != trit_bytes(numel_)) return size < trit_bytes(numel_) ? Fault::cut_short : Fault::longer;
    for (size_t i = 0; i < size; ++i)
      if (body[i] > 242) return Fault::trits;
    trits_ = body;
    return Fault::none;
  }
  Fault open_listed(const uint8_t* body, size_t size, size_t count) {
    const size_t others = form_ == kVotes ? count : numel_ - count;
    const size_t signs = bytes_for(others), low = bytes_for(count * size_t(b_));
    if (signs + low > size) return Fault::cut_short;
    const uint8_t* const high = body + signs + low;
    const size_t left = size - signs - low;
    size_t ones = 0;
    for (size_t i = 0; i < left; ++i) ones += size_t(__builtin_popcount(high[i]));
    if (ones < count) return Fault::cut_short;
    if (ones > count || (left && !high[left - 1])) return Fault::longer;
    signs_ = body;
    low_ = BitReader(body + signs, low);
    high_ = BitReader(high, left);
    listed_ = count;
    if (listed_) advance();
    return Fault::none;
  }
  // `next_` is the place that is listed as number `j_`.
  void advance() { next_ += (high_.zeros() << b_) + low_.take(b_); }
  void pass() {
    ++next_;
    if (++j_ < listed_) advance();
  }
  bool sign(size_t vote) const { return signs_[vote / 8] >> (vote % 8) & 1; }

  template <class Visit> void votes_until(size_t limit, Visit visit) {
    while (j_ < listed_ && next_ < limit) {
      visit(size_t(next_), sign(j_));
      pass();
    }
  }
  template <class Visit> void others_until(size_t limit, Visit visit) {
    while (at_ < limit) {
      const size_t stop = j_ < listed_ && next_ < limit ? size_t(next_) : limit;
      if (stop - at_ > numel_ - listed_ - seen_) {  // some listed places lie beyond
        at_ = limit;
        return;
      }
      for (; at_ < stop; ++at_) visit(at_, sign(seen_++));
      if (at_ == limit) return;
      ++at_;
      pass();
    }
  }
  template <class Visit> void trits_until(size_t limit, Visit visit) {
    for (; at_ < limit; at_ += kTritsPerByte) {
      unsigned byte = trits_[at_ / kTritsPerByte];
      for (size_t k = 0; k < kTritsPerByte; ++k, byte /= 3)
        if (byte % 3) {
          if (at_ + k >= numel_) fault_ = Fault::beyond;
          else visit(at_ + k, byte % 3 == 2);
        }
    }
  }

  int form_ = kLost, b_ = 0;
  size_t numel_ = 0, listed_ = 0, j_ = 0, at_ = 0, seen_ = 0;
  uint64_t next_ = 0;
  const uint8_t *signs_ = nullptr, *trits_ = nullptr;
  BitReader low_, high_;
  Fault fault_ = Fault::none;
};

}}  // namespace laconic::LACONIC_ISA
