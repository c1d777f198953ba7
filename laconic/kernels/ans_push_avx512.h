// Part of AnsWriter: rows of 64 lanes in four registers, for shares that are powers of two.

// Entries of the table for the symbols in lanes of 16 bits.
static __m512i looked_up(const __m512i (&table)[8], __m512i symbols) {
  const __mmask32 odd = _mm512_test_epi16_mask(symbols, _mm512_set1_epi16(64));
  const __mmask32 upper = _mm512_test_epi16_mask(symbols, _mm512_set1_epi16(128));
  const auto quarter = [&](int k) { return _mm512_permutex2var_epi16(table[2 * k], symbols, table[2 * k + 1]); };
  return _mm512_mask_blend_epi16(upper, _mm512_mask_blend_epi16(odd, quarter(0), quarter(1)),
                                 _mm512_mask_blend_epi16(odd, quarter(2), quarter(3)));
}

// The lower halves of the numbers in `full` go before the words that are there.
__m512i spill(__m512i numbers, __mmask16 full) {
  const unsigned count = unsigned(__builtin_popcount(full));
  at_ -= 2 * count;
  _mm256_mask_storeu_epi16(at_, __mmask16((1u << count) - 1),
                           _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, numbers)));
  return _mm512_mask_srli_epi32(numbers, full, numbers, 16);
}

__m512i push_escaped(__m512i numbers, __m512i symbols, __mmask16 rare) {
  const __m512i spilled = spill(numbers, _mm512_mask_cmpge_epu32_mask(rare, numbers, _mm512_set1_epi32(1 << 24)));
  return _mm512_mask_or_epi32(spilled, rare, _mm512_slli_epi32(spilled, kRawBits), symbols);
}

__m512i push_symbols(__m512i numbers, __m512i entries) {
  const __m512i shift = _mm512_and_si512(entries, _mm512_set1_epi32(15));
  const __m512i start = _mm512_and_si512(_mm512_srli_epi32(entries, 4), _mm512_set1_epi32(kWhole - 1));
  const __m512i above = _mm512_srlv_epi32(numbers, _mm512_add_epi32(shift, _mm512_set1_epi32(32 - kScale)));
  const __m512i spilled = spill(numbers, _mm512_test_epi32_mask(above, above));
  const __m512i rest = _mm512_andnot_si512(_mm512_sllv_epi32(_mm512_set1_epi32(-1), shift), spilled);
  return _mm512_ternarylogic_epi32(_mm512_slli_epi32(_mm512_srlv_epi32(spilled, shift), kScale), start, rest, 0xfe);
}

// How many of the symbols, from the first on, are left: all, or those for which there is no room.
size_t push_vectors(const uint8_t* symbols, size_t left, const PushTable& pushed) {
  __m512i table[8], numbers[kStep];
  for (int k = 0; k < 8; ++k) table[k] = _mm512_load_si512(pushed.packed + 32 * k);
  for (size_t v = 0; v < kStep; ++v) numbers[v] = lane_numbers(v);
  const __m512i low = _mm512_set1_epi32(0xffff);
  for (; left && has_room(); left -= kMostLanes) {
    const __m512i row = _mm512_loadu_si512(symbols + left - kMostLanes);
    const __m512i even = looked_up(table, _mm512_and_si512(row, _mm512_set1_epi16(255)));
    const __m512i odd = looked_up(table, _mm512_srli_epi16(row, 8));
    const __m512i entries[kStep] = {_mm512_and_si512(even, low), _mm512_and_si512(odd, low),
                                    _mm512_srli_epi32(even, 16), _mm512_srli_epi32(odd, 16)};
    if (__builtin_expect(_mm512_movepi16_mask(_mm512_or_si512(even, odd)) != 0, 0)) {
      if (!pushed.escapes) fault_ = CodeFault::unknown;
#pragma GCC unroll 4
      for (int v = kStep - 1; v >= 0; --v) {
        const __m512i own = _mm512_and_si512(_mm512_srli_epi32(row, unsigned(8 * v)), _mm512_set1_epi32(255));
        numbers[v] = push_escaped(numbers[v], own, _mm512_test_epi32_mask(entries[v], _mm512_set1_epi32(1 << 15)));
      }
    }
#pragma GCC unroll 4
    for (int v = kStep - 1; v >= 0; --v) numbers[v] = push_symbols(numbers[v], entries[v]);
  }
  for (size_t v = 0; v < kStep; ++v) keep_lanes(v, numbers[v]);
  return left;
}

// Every fourth lane's number, from lane `v` on.
__m512i lane_numbers(size_t v) const {
  const __m512i lanes = _mm512_add_epi32(
      _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60), _mm512_set1_epi32(int(v)));
  return _mm512_i32gather_epi32(lanes, numbers_, 4);
}
void keep_lanes(size_t v, __m512i numbers) {
  alignas(64) uint32_t own[16];
  _mm512_store_si512(own, numbers);
  for (size_t d = 0; d < 16; ++d) numbers_[kStep * d + v] = own[d];
}
