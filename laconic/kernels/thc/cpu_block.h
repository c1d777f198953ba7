// One block of THC: load, round, and what is left; for any size, grid and instruction set.
#pragma once
#include <algorithm>
#include <cmath>

#include "native/floats.h"
#include "native/hash.h"
#include "thc/cpu.h"
#include "native/vectors.h"

namespace laconic { namespace LACONIC_ISA {

constexpr size_t kMaxSize = 1 << 15;

// What is known about a height from its integer part, a node of the grid: the code at or below it, that code's
// level, and the gap to the next.
class Node {
 public:
  Node() = default;
  Node(int code, int level, int gap) : packed_(code | level << 8 | gap << 18) {}
  int code() const { return packed_ & 255; }
  int level() const { return (packed_ >> 8) & 1023; }
  int gap() const { return packed_ >> 18; }

 private:
  int32_t packed_ = 0;  // one word, so that one gather fetches it
};

struct Lookup {
  int granularity, last;
  float scale, center, top, step;
  int32_t level[256];
  Node node[1024];

  explicit Lookup(const Grid& grid)
      : granularity(grid.granularity), last((1 << grid.bits) - 1),
        scale(float(kUnit * granularity / (2 * grid.threshold))), center(kUnit * granularity / 2.0f + 0.5f),
        top(float(kUnit * granularity)), step(float(2 * grid.threshold / granularity)) {
    for (int code = 0; code <= last; ++code) level[code] = int32_t(grid.table[code]);
    for (int at = 0, code = 0; at <= granularity; ++at) {
      while (code < last - 1 && level[code + 1] <= at) ++code;
      node[at] = Node(code, level[code], level[code + 1] - level[code]);
    }
  }

  float scale_of(float norm) const { return norm > kTiny ? scale / norm : 0.0f; }
};

inline float step_of(float step, float norm, size_t size) { return norm * step * (0.5f / float(size)); }

// The signs of a block's coordinates: coordinate i has bit i % 32 of word i / 32.
struct Signs {
  alignas(64) uint32_t words[kMaxSize / 32 + kLanes];

  void draw_for(uint32_t key, const Block& block) {
    draw(key, uint32_t(block.offset / 32), std::max<size_t>(block.size / 32, 1), words);
    words[0] >>= block.offset % 32;  // a block below 32 coordinates begins inside a word
  }
  // out[i] is values[i] with the sign of coordinate i.
  void apply(const float* values, size_t size, float* out) const {
    for (size_t at = 0; at < size; at += 32)
      for (uint32_t i = 0; i < std::min<size_t>(32, size - at); ++i)
        out[at + i] = float_of(bits_of(values[at + i]) ^ ((words[at / 32] << (31 - i)) & 0x80000000u));
  }
};

// Fixed room for one block at a time.
struct Scratch {
  alignas(64) float exact[kMaxSize], rotated[kMaxSize];
  alignas(64) int32_t values[kMaxSize];
  alignas(64) int16_t words[kMaxSize];
  alignas(64) uint32_t noise[kMaxSize / 2 + kLanes];
  alignas(64) uint8_t codes[kMaxSize], split[2 * kMaxSize];
  Signs signs;
};

// Messages of so many bytes each, from one to the next `stride`, as if they were one behind the other.
template <class Byte> struct Messages {
  Byte* first;
  size_t bytes, stride;

  bool in_one(size_t at, size_t count) const { return at % bytes + count <= bytes; }
  Byte* place(size_t at) const { return first + at / bytes * stride + at % bytes; }
  // copy(the place, how many bytes came before it, how many are there), of every message in which some are.
  template <class Copy> void each(size_t at, size_t count, Copy copy) const {
    for (size_t done = 0, here; done < count; done += here) {
      here = std::min(count - done, bytes - (at + done) % bytes);
      copy(place(at + done), done, here);
    }
  }
};

// What encoding and decoding a piece's blocks takes.
template <class T> struct Encoding {
  const T* grad;
  const float* residual;
  const Lookup& lookup;
  int bits;
  Keys keys;
  Messages<uint8_t> codes;
  float* left;
  Scratch& room;

  // Where the block's codes are to be put, after which they must be `settled`.
  uint8_t* codes_of(const Block& block) const {
    return codes.in_one(bytes(block.at), bytes(block.size)) ? codes.place(bytes(block.at)) : room.split;
  }
  void settle(const Block& block) const {
    if (codes.in_one(bytes(block.at), bytes(block.size))) return;
    codes.each(bytes(block.at), bytes(block.size),
               [&](uint8_t* to, size_t done, size_t here) { std::memcpy(to, room.split + done, here); });
  }

 private:
  size_t bytes(int64_t coordinates) const { return size_t(coordinates) / 8 * size_t(bits); }
};
template <class T> struct Decoding {
  Messages<const uint8_t> replies;  // without their counts
  int granularity, lane, count;
  float step;
  uint32_t key;
  T* grad;
  Scratch& room;

  // The block's packed sums in one place, even if it lies across the end of a reply.
  const uint8_t* sums(const Block& block) const {
    const size_t at = size_t(block.at) / 8 * size_t(lane), count = size_t(block.size) / 8 * size_t(lane);
    if (replies.in_one(at, count)) return replies.place(at);
    replies.each(at, count, [&](const uint8_t* from, size_t done, size_t here) {
      std::memcpy(room.split + done, from, here);
    });
    return room.split;
  }
};

// The values themselves, or the same as floats in `room`.
inline const float* as_floats(const float* values, size_t, float*) { return values; }
template <class T> inline const float* as_floats(const T* values, size_t count, float* room) {
  widen(values, room, count);
  return room;
}

template <class T> void load_exact(const T* grad, const float* residual, const Block& block, float* exact) {
  const size_t numel = size_t(block.numel);
  widen(grad + block.start, exact, numel);
  if (residual)
    for (size_t i = 0; i < numel; ++i) exact[i] += residual[block.start + i];
  std::fill(exact + numel, exact + block.size, 0.0f);
}

// Integers of `width` bits, lowest bits first; count is a multiple of 8.
template <class T> void pack(const T* values, size_t count, int width, uint8_t* out) {
  if (width == 4) {
    for (size_t i = 0; i < count / 2; ++i) out[i] = uint8_t(values[2 * i] | values[2 * i + 1] << 4);
    return;
  }
  uint64_t bits = 0;
  int filled = 0;
  for (size_t i = 0; i < count; ++i) {
    bits |= uint64_t(values[i]) << filled;
    for (filled += width; filled >= 8; filled -= 8, bits >>= 8) *out++ = uint8_t(bits);
  }
}
template <class T> void unpack(const uint8_t* packed, size_t count, int width, T* values) {
  if (width == 8) {
    for (size_t i = 0; i < count; ++i) values[i] = packed[i];
    return;
  }
  uint64_t bits = 0;
  int held = 0;
  for (size_t i = 0; i < count; ++i) {
    for (; held < width; held += 8) bits |= uint64_t(*packed++) << held;
    values[i] = T(bits & ((1u << width) - 1));
    bits >>= width;
    held -= width;
  }
}

// Codes of the rotated block, and in `values` twice what they stand for above the middle of the grid. Returns how
// many heights lie at an end of the grid.
inline int round_block(const Lookup& lookup, float norm, size_t size, Scratch& room) {
  const float scale = lookup.scale_of(norm), center = lookup.center, top = lookup.top;
  const int granularity = lookup.granularity, end = kUnit * granularity;
  const uint16_t* const noise = reinterpret_cast<const uint16_t*>(room.noise);
  int clamped = 0;
  for (size_t i = 0; i < size; ++i) {
    const float height = room.rotated[i] * scale + center;
    const float positive = height > 0.0f ? height : 0.0f;  // 0 for a NaN
    const int y = int(positive < top ? positive : top);
    const Node node = lookup.node[y / kUnit];
    const int up = y - kUnit * node.level() > (noise[i] * node.gap()) / (65536 / kUnit);
    room.codes[i] = uint8_t(node.code() + up);
    room.values[i] = 2 * (node.level() + up * node.gap()) - granularity;
    clamped += (y == 0) | (y == end);
  }
  return clamped;
}

}}  // namespace laconic::LACONIC_ISA
