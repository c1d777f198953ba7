// What targets share: an input as numbers and messages, buffers of just their size, and this machine's instruction sets.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "native/available.h"

namespace laconic { namespace fuzz {

inline void demand(bool holds, const char* sentence) {
  if (holds) return;
  std::fprintf(stderr, "demanded, and not so: %s\n", sentence);
  std::abort();
}

// Values with nothing behind them, so that one read or written beyond ends the program; even none have an address.
template <class T> class Buffer {
 public:
  explicit Buffer(size_t size) : values_(new T[size]), size_(size) {
    std::memset(static_cast<void*>(values_.get()), 0xab, size * sizeof(T));
  }
  Buffer(const T* from, size_t size) : values_(new T[size]), size_(size) { std::copy_n(from, size, values_.get()); }
  Buffer(const Buffer& other) : Buffer(other.data(), other.size()) {}
  Buffer(Buffer&&) = default;

  T* data() const { return values_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return values_[i]; }
  T* begin() const { return data(); }
  T* end() const { return data() + size_; }
  Buffer begun(size_t size) const { return Buffer(data(), size); }
  bool operator==(const Buffer& other) const {
    return size_ == other.size_ && !std::memcmp(data(), other.data(), size_ * sizeof(T));
  }

 private:
  std::unique_ptr<T[]> values_;
  size_t size_;
};
using Bytes = Buffer<uint8_t>;

// What libFuzzer gives, taken in order; zeros behind its end.
class Input {
 public:
  Input(const uint8_t* bytes, size_t size) : at_(bytes), end_(bytes + size) {}

  // The next bytes as a number, the lowest first.
  size_t number(size_t bytes) {
    size_t value = 0;
    for (size_t i = 0; i < bytes && at_ < end_; ++i) value |= size_t(*at_++) << (8 * i);
    return value;
  }
  Bytes take(size_t count) {
    const Bytes taken(at_, std::min(count, left()));
    at_ += taken.size();
    return taken;
  }
  // So many bytes, the last ones maybe zeros.
  Bytes filled(size_t count) {
    const Bytes all(count), taken = take(count);
    std::fill(std::copy(taken.begin(), taken.end(), all.begin()), all.end(), uint8_t(0));
    return all;
  }
  Bytes rest() { return take(left()); }
  size_t left() const { return size_t(end_ - at_); }

 private:
  const uint8_t *at_, *end_;
};

inline const std::vector<InstructionSet>& sets() {
  static const std::vector<InstructionSet> all = available();
  return all;
}

// What run(kernels) returns on the first instruction set; on all others it is equal.
template <class Run> auto alike(Run run) {
  const auto first = run(*sets().front().kernels);
  for (size_t k = 1; k < sets().size(); ++k)
    demand(run(*sets()[k].kernels) == first, "all instruction sets say the same");
  return first;
}

}}  // namespace laconic::fuzz
