// Part of AnsWriter: rows of 64 lanes in four registers.

// The entries of a table of 256 words for a row of symbols, by lane modulo four.
struct LookUp {
  explicit LookUp(const uint16_t* words) {
    for (int k = 0; k < 8; ++k) table[k] = _mm512_load_si512(words + 32 * k);
  }
  // For symbols in lanes of 16 bits.
  __m512i operator()(__m512i symbols) const {
    const __mmask32 odd = _mm512_test_epi16_mask(symbols, _mm512_set1_epi16(64));
    const __mmask32 upper = _mm512_test_epi16_mask(symbols, _mm512_set1_epi16(128));
    const auto quarter = [&](int k) { return _mm512_permutex2var_epi16(table[2 * k], symbols, table[2 * k + 1]); };
    return _mm512_mask_blend_epi16(upper, _mm512_mask_blend_epi16(odd, quarter(0), quarter(1)),
                                   _mm512_mask_blend_epi16(odd, quarter(2), quarter(3)));
  }
  __m512i table[8];
};
static __m512i even_symbols(__m512i row) { return _mm512_and_si512(row, _mm512_set1_epi16(255)); }
static __m512i odd_symbols(__m512i row) { return _mm512_srli_epi16(row, 8); }

// Words of lanes that are 0 and 2, and 1 and 3, modulo four.
struct Words {
  __m512i even, odd;

  bool rare() const { return _mm512_movepi16_mask(_mm512_or_si512(even, odd)); }
  Words plain() const {
    const __m512i flag = _mm512_set1_epi16(int16_t(0x8000));
    return {_mm512_andnot_si512(flag, even), _mm512_andnot_si512(flag, odd)};
  }
  __m512i of(int v) const {
    const __m512i pair = v % 2 ? odd : even;
    return v < 2 ? _mm512_and_si512(pair, _mm512_set1_epi32(0xffff)) : _mm512_srli_epi32(pair, 16);
  }
};

// The lower halves of the numbers in `full` go before the words that are there.
static __m512i spill(__m512i numbers, __mmask16 full, uint8_t*& at) {
  const unsigned count = unsigned(__builtin_popcount(full));
  at -= 2 * count;
  _mm256_mask_storeu_epi16(at, __mmask16((1u << count) - 1),
                           _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, numbers)));
  return _mm512_mask_srli_epi32(numbers, full, numbers, 16);
}

static __m512i push_bits(__m512i numbers, __m512i entries, uint8_t*& at) {
  const __m512i shift = _mm512_and_si512(entries, _mm512_set1_epi32(15));
  const __m512i start = _mm512_srli_epi32(entries, 4);
  const __m512i above = _mm512_srlv_epi32(numbers, _mm512_add_epi32(shift, _mm512_set1_epi32(32 - kScale)));
  const __m512i spilled = spill(numbers, _mm512_test_epi32_mask(above, above), at);
  const __m512i rest = _mm512_andnot_si512(_mm512_sllv_epi32(_mm512_set1_epi32(-1), shift), spilled);
  return _mm512_ternarylogic_epi32(_mm512_slli_epi32(_mm512_srlv_epi32(spilled, shift), kScale), start, rest, 0xfe);
}

static __m512i push_share(__m512i numbers, __m512i start, __m512i share, uint8_t*& at) {
  const __m512i above = _mm512_srli_epi32(numbers, 32 - kScale);
  const __m512i spilled = spill(numbers, _mm512_cmpge_epu32_mask(above, share), at);
  // Below 2^21, and both roundings are down: a half at most is missing, so truncating takes away one at most.
  constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const __m512 quotient =
      _mm512_div_round_ps(_mm512_cvt_roundepu32_ps(spilled, kDown), _mm512_cvtepi32_ps(share), kDown);
  const __m512i times = _mm512_cvttps_epi32(quotient);
  const __m512i rest = _mm512_sub_epi32(spilled, _mm512_mullo_epi32(times, share));
  const __m512i pushed = _mm512_add_epi32(_mm512_add_epi32(rest, start), _mm512_slli_epi32(times, kScale));
  const __m512i others = _mm512_sub_epi32(_mm512_set1_epi32(kWhole), share);
  return _mm512_mask_add_epi32(pushed, _mm512_cmpge_epu32_mask(rest, share), pushed, others);
}

struct Row {
  __m512i numbers[kStep];
  uint8_t* at;

  // Symbols behind the escapes of `starts`.
  void push_escaped(__m512i symbols, const Words& starts) {
    for (int v = kStep - 1; v >= 0; --v) {
      const __m512i own = _mm512_and_si512(_mm512_srli_epi32(symbols, unsigned(8 * v)), _mm512_set1_epi32(255));
      const __mmask16 rare = _mm512_test_epi32_mask(starts.of(v), _mm512_set1_epi32(1 << 15));
      const __mmask16 full = _mm512_mask_cmpge_epu32_mask(rare, numbers[v], _mm512_set1_epi32(1 << 24));
      const __m512i spilled = spill(numbers[v], full, at);
      numbers[v] = _mm512_mask_or_epi32(spilled, rare, _mm512_slli_epi32(spilled, kRawBits), own);
    }
  }
};

struct PushBits {
  explicit PushBits(const PushTable&) {}
  void operator()(Row& row, __m512i, const Words& starts) const {
#pragma GCC unroll 4
    for (int v = kStep - 1; v >= 0; --v) row.numbers[v] = push_bits(row.numbers[v], starts.of(v), row.at);
  }
};
struct PushShares {
  explicit PushShares(const PushTable& table) : shares(table.shares) {}
  void operator()(Row& row, __m512i symbols, const Words& starts) const {
    const Words share = {shares(even_symbols(symbols)), shares(odd_symbols(symbols))};
#pragma GCC unroll 4
    for (int v = kStep - 1; v >= 0; --v)
      row.numbers[v] = push_share(row.numbers[v], starts.of(v), share.of(v), row.at);
  }
  LookUp shares;
};

// How many of the symbols, from the first on, are left: all, or those for which there is no room.
template <class Push> size_t push_vectors_by(const uint8_t* symbols, size_t left, const PushTable& table) {
  const LookUp look_up(table.starts);
  const Push push(table);
  Row row = {{lane_numbers(0), lane_numbers(1), lane_numbers(2), lane_numbers(3)}, at_};
  for (; left && has_room(row.at); left -= kMostLanes) {
    const __m512i own = _mm512_loadu_si512(symbols + left - kMostLanes);
    Words starts = {look_up(even_symbols(own)), look_up(odd_symbols(own))};
    if (__builtin_expect(starts.rare(), 0)) {
      if (!table.escapes) fault_ = CodeFault::unknown;
      row.push_escaped(own, starts);
      starts = starts.plain();
    }
    push(row, own, starts);
  }
  for (size_t v = 0; v < kStep; ++v) keep_lanes(v, row.numbers[v]);
  at_ = row.at;
  return left;
}
size_t push_vectors(const uint8_t* symbols, size_t left, const PushTable& table) {
  return table.bits ? push_vectors_by<PushBits>(symbols, left, table)
                    : push_vectors_by<PushShares>(symbols, left, table);
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
