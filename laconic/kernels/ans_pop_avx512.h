// Part of AnsReader: rows of 64 lanes in four registers.

// Byte k of a's, b's, c's and d's words, for k = 0, 1, 2 and 3.
static __m512i side_by_side(__m512i a, __m512i b, __m512i c, __m512i d) {
  const auto choose = [](uint32_t mask, __m512i first, __m512i second) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(int(mask)), first, second, 0xca);
  };
  return choose(0x0000ffff, choose(0x000000ff, a, b), choose(0x00ff0000, c, d));
}
static __m512i side_by_side(const __m512i (&v)[kStep]) {
  return side_by_side(v[0], _mm512_slli_epi32(v[1], 8), _mm512_slli_epi32(v[2], 16), _mm512_slli_epi32(v[3], 24));
}
// Byte k of every word.
static __m512i byte_of(__m512i words, unsigned k) {
  return _mm512_and_si512(_mm512_srli_epi32(words, 8 * k), _mm512_set1_epi32(255));
}

__m512i refilled(__m512i numbers, __mmask16 among) {
  const __mmask16 low = _mm512_mask_cmplt_epu32_mask(among, numbers, _mm512_set1_epi32(kLowest));
  const __m256i next = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at_));
  const __m512i words = _mm512_maskz_expand_epi32(low, _mm512_cvtepu16_epi32(next));
  const unsigned taken = unsigned(__builtin_popcount(low));
  at_ += 2 * taken, left_ -= taken;
  return _mm512_mask_or_epi32(numbers, low, _mm512_slli_epi32(numbers, 16), words);
}

// The row with what is behind its escapes.
__attribute__((noinline)) __m512i pop_escaped(__m512i row, __m512i (&numbers)[kStep], const PopTable& table) {
  __m512i symbols[kStep];
  for (unsigned v = 0; v < kStep; ++v) {
    const __mmask16 escaped = _mm512_cmpeq_epi32_mask(byte_of(row, v), _mm512_set1_epi32(kEscape));
    symbols[v] = _mm512_mask_blend_epi32(escaped, byte_of(row, v), byte_of(numbers[v], 0));
    numbers[v] = refilled(_mm512_mask_srli_epi32(numbers[v], escaped, numbers[v], kRawBits), escaped);
    alignas(64) uint32_t own[16];
    _mm512_store_si512(own, symbols[v]);
    for (unsigned left = escaped; left; left &= left - 1)
      if (table.share[own[__builtin_ctz(left)]]) fault_ = CodeFault::unknown;
  }
  return side_by_side(symbols);
}

// The entries of a table of 2^11, one for every number.
static __m512i gathered(__m512i numbers, const uint32_t* entries) {
  return _mm512_i32gather_epi32(_mm512_and_si512(numbers, _mm512_set1_epi32(kWhole - 1)), entries, 4);
}

// A row of symbols, with any shares.
__m512i pop_any(__m512i (&numbers)[kStep], const PopTable& table) {
  const __m512i eleven = _mm512_set1_epi32(kWhole - 1), one = _mm512_set1_epi32(1);
  __m512i entries[kStep], symbols[kStep];
#pragma GCC unroll 4
  for (size_t v = 0; v < kStep; ++v) entries[v] = gathered(numbers[v], table.entries);
#pragma GCC unroll 4
  for (size_t v = 0; v < kStep; ++v) {
    const __m512i share = _mm512_add_epi32(_mm512_and_si512(entries[v], eleven), one);
    const __m512i rest = _mm512_and_si512(_mm512_srli_epi32(entries[v], 11), eleven);
    symbols[v] = _mm512_srli_epi32(entries[v], 22);
    numbers[v] = refilled(
        _mm512_add_epi32(_mm512_mullo_epi32(share, _mm512_srli_epi32(numbers[v], kScale)), rest), __mmask16(0xffff));
  }
  return side_by_side(symbols);
}

#pragma GCC push_options
#pragma GCC target("avx512vbmi")
#define LACONIC_INLINE inline __attribute__((always_inline))

// Entries of a table of 256 bytes.
static LACONIC_INLINE __m512i bytes_at(const __m512i (&table)[4], __m512i places) {
  return _mm512_mask_blend_epi8(_mm512_movepi8_mask(places), _mm512_permutex2var_epi8(table[0], places, table[1]),
                                _mm512_permutex2var_epi8(table[2], places, table[3]));
}

LACONIC_INLINE __m512i pop_bits(__m512i number, __m512i shift) {
  const __m512i above = _mm512_sllv_epi32(_mm512_srli_epi32(number, kScale), shift);
  const __m512i not_rest = _mm512_sllv_epi32(_mm512_set1_epi32(-1), shift);
  return refilled(_mm512_ternarylogic_epi32(above, not_rest, number, 0xf2), __mmask16(0xffff));  // above | rest
}

// Rows as long as words last; shares are powers of two, so those of eight or more are found by eight bits of a slot.
__attribute__((noinline)) size_t pop_whole_bits(uint8_t* symbols, size_t count, __m512i (&numbers)[kStep],
                                                const PopTable& table) {
  __m512i coarse[4], shifts[4];
  for (size_t k = 0; k < 4; ++k) {
    coarse[k] = _mm512_load_si512(table.coarse + 64 * k);
    shifts[k] = _mm512_load_si512(table.shift + 64 * k);
  }
  size_t done = 0;
  for (; done + kMostLanes <= count && left_ >= kMostWords; done += kMostLanes) {
    const __m512i upper = side_by_side(_mm512_srli_epi32(numbers[0], 3), _mm512_slli_epi32(numbers[1], 5),
                                       _mm512_slli_epi32(numbers[2], 13), _mm512_slli_epi32(numbers[3], 21));
    const __m512i lower = side_by_side(numbers), block = _mm512_and_si512(upper, _mm512_set1_epi8(char(0xf0)));
    __m512i row = bytes_at(coarse, upper);
    for (size_t k = table.first_fine; k < kWhole / 128; ++k) {
      const __m512i fine = _mm512_permutex2var_epi8(_mm512_load_si512(table.symbol + 128 * k), lower,
                                                    _mm512_load_si512(table.symbol + 128 * k + 64));
      row = _mm512_mask_mov_epi8(row, _mm512_cmpeq_epi8_mask(block, _mm512_set1_epi8(char(k << 4))), fine);
    }
    const __m512i shift = bytes_at(shifts, row);
#pragma GCC unroll 4
    for (unsigned v = 0; v < kStep; ++v) numbers[v] = pop_bits(numbers[v], byte_of(shift, v));
    if (__builtin_expect(_mm512_cmpeq_epi8_mask(row, _mm512_set1_epi8(char(kEscape))) != 0, 0))
      row = pop_escaped(row, numbers, table);
    _mm512_storeu_si512(symbols + done, row);
  }
  return done;
}
#undef LACONIC_INLINE
#pragma GCC pop_options

size_t pop_shares(uint8_t* symbols, size_t count, __m512i (&numbers)[kStep], const PopTable& table) {
  size_t done = 0;
  for (; done + kMostLanes <= count && left_ >= kMostWords; done += kMostLanes) {
    __m512i row = pop_any(numbers, table);
    if (__builtin_expect(_mm512_cmpeq_epi8_mask(row, _mm512_set1_epi8(char(kEscape))) != 0, 0))
      row = pop_escaped(row, numbers, table);
    _mm512_storeu_si512(symbols + done, row);
  }
  return done;
}

// How many symbols, of whole rows, were popped while words were plenty.
size_t pop_vectors(uint8_t* symbols, size_t count, const PopTable& table) {
  static const bool permutes = __builtin_cpu_supports("avx512vbmi");
  __m512i numbers[kStep];
  for (size_t v = 0; v < kStep; ++v) {
    alignas(64) uint32_t own[16];
    for (size_t d = 0; d < 16; ++d) own[d] = numbers_[kStep * d + v];
    numbers[v] = _mm512_load_si512(own);
  }
  const size_t done = permutes && table.bits ? pop_whole_bits(symbols, count, numbers, table)
                                                   : pop_shares(symbols, count, numbers, table);
  for (size_t v = 0; v < kStep; ++v) {
    alignas(64) uint32_t own[16];
    _mm512_store_si512(own, numbers[v]);
    for (size_t d = 0; d < 16; ++d) numbers_[kStep * d + v] = own[d];
  }
  return done;
}
