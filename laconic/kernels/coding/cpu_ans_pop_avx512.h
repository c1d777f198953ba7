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
  return k == 3 ? _mm512_srli_epi32(words, 24)
                : _mm512_and_si512(_mm512_srli_epi32(words, 8 * k), _mm512_set1_epi32(255));
}

static __m512i refilled(__m512i numbers, __mmask16 low, const uint8_t*& at) {
  const __m256i next = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  const __m512i words = _mm512_maskz_expand_epi32(low, _mm512_cvtepu16_epi32(next));
  at += 2 * unsigned(__builtin_popcount(low));
  return _mm512_mask_or_epi32(numbers, low, _mm512_slli_epi32(numbers, 16), words);
}
static __m512i refilled(__m512i numbers, const uint8_t*& at) {
  return refilled(numbers, _mm512_cmplt_epu32_mask(numbers, _mm512_set1_epi32(kLowest)), at);
}

// Four vectors of numbers, and where the words are that they take next.
struct Rows {
  __m512i numbers[kStep];
  const uint8_t* at;
};

// The symbols with what is behind their escapes.
__attribute__((noinline)) __m512i pop_escaped(__m512i row, Rows& rows, const PopTable& table) {
  __m512i symbols[kStep];
  for (unsigned v = 0; v < kStep; ++v) {
    __m512i& numbers = rows.numbers[v];
    const __mmask16 escaped = _mm512_cmpeq_epi32_mask(byte_of(row, v), _mm512_set1_epi32(kEscape));
    symbols[v] = _mm512_mask_blend_epi32(escaped, byte_of(row, v), byte_of(numbers, 0));
    numbers = _mm512_mask_srli_epi32(numbers, escaped, numbers, kRawBits);
    numbers = refilled(numbers, _mm512_mask_cmplt_epu32_mask(escaped, numbers, _mm512_set1_epi32(kLowest)), rows.at);
    alignas(64) uint32_t own[16];
    _mm512_store_si512(own, symbols[v]);
    for (unsigned left = escaped; left; left &= left - 1)
      if (table.known[own[__builtin_ctz(left)]]) fault_ = CodeFault::unknown;
  }
  return side_by_side(symbols);
}

struct PopShares {
  explicit PopShares(const PopTable& table) : packed(table.packed) {}
  __m512i operator()(Rows& rows) const {
    const __m512i eleven = _mm512_set1_epi32(kWhole - 1);
    __m512i found[kStep];
#pragma GCC unroll 4
    for (size_t v = 0; v < kStep; ++v)
      found[v] = _mm512_i32gather_epi32(_mm512_and_si512(rows.numbers[v], eleven), packed, 4);
#pragma GCC unroll 4
    for (size_t v = 0; v < kStep; ++v) {
      const __m512i rest = _mm512_and_si512(_mm512_srli_epi32(found[v], PopTable::kRestAt), eleven);
      const __m512i whole = _mm512_mullo_epi32(_mm512_srli_epi32(found[v], PopTable::kShareAt),
                                               _mm512_srli_epi32(rows.numbers[v], kScale));
      rows.numbers[v] = refilled(_mm512_add_epi32(whole, rest), rows.at);
    }
    return side_by_side(found);
  }
  const uint32_t* packed;
};

// Writes a row of symbols that was popped. Only rows with escapes are in memory, the others stay in registers.
__attribute__((always_inline)) inline void keep(__m512i row, Rows& rows, const PopTable& table, uint8_t* symbols) {
  if (__builtin_expect(_mm512_cmpeq_epi8_mask(row, _mm512_set1_epi8(char(kEscape))) != 0, 0)) {
    Rows escaped = rows;
    row = pop_escaped(row, escaped, table);
    rows = escaped;
  }
  _mm512_storeu_si512(symbols, row);
}

// How many symbols, of whole rows, were popped while words were plenty.
__attribute__((noinline)) size_t pop_shares(uint8_t* symbols, size_t count, Rows& all, const PopTable& table) {
  const PopShares pop(table);
  Rows rows = all;
  size_t done = 0;
  for (; done + kMostLanes <= count && plenty(rows.at); done += kMostLanes)
    keep(pop(rows), rows, table, symbols + done);
  all = rows;
  return done;
}

// With instructions that not every machine with AVX-512 has.
#define LACONIC_PERMUTES target("avx512vbmi")
#define LACONIC_INLINE inline __attribute__((always_inline, LACONIC_PERMUTES))

// A table of 256 bytes.
struct Bytes {
  LACONIC_INLINE explicit Bytes(const uint8_t* bytes) {
    for (size_t k = 0; k < 4; ++k) table[k] = _mm512_load_si512(bytes + 64 * k);
  }
  LACONIC_INLINE __m512i operator()(__m512i places) const {
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(places), _mm512_permutex2var_epi8(table[0], places, table[1]),
                                  _mm512_permutex2var_epi8(table[2], places, table[3]));
  }
  __m512i table[4];
};

// Shares that are powers of two; those of eight or more are found by eight bits of a slot.
struct PopBits {
  LACONIC_INLINE explicit PopBits(const PopTable& table) : table(table), coarse(table.coarse), shifts(table.shift) {}
  LACONIC_INLINE __m512i operator()(Rows& rows) const {
    const __m512i row = symbols(rows.numbers), shift = shifts(row);
#pragma GCC unroll 4
    for (unsigned v = 0; v < kStep; ++v)
      rows.numbers[v] = refilled(popped(rows.numbers[v], byte_of(shift, v)), rows.at);
    return row;
  }
  LACONIC_INLINE __m512i symbols(const __m512i (&numbers)[kStep]) const {
    const __m512i upper = side_by_side(_mm512_srli_epi32(numbers[0], 3), _mm512_slli_epi32(numbers[1], 5),
                                       _mm512_slli_epi32(numbers[2], 13), _mm512_slli_epi32(numbers[3], 21));
    const __m512i lower = side_by_side(numbers), block = _mm512_and_si512(upper, _mm512_set1_epi8(char(0xf0)));
    __m512i row = coarse(upper);
    for (size_t k = table.first_fine; k < kWhole / 128; ++k) {
      const __m512i fine = _mm512_permutex2var_epi8(_mm512_load_si512(table.symbol + 128 * k), lower,
                                                    _mm512_load_si512(table.symbol + 128 * k + 64));
      row = _mm512_mask_mov_epi8(row, _mm512_cmpeq_epi8_mask(block, _mm512_set1_epi8(char(k << 4))), fine);
    }
    return row;
  }
  static LACONIC_INLINE __m512i popped(__m512i number, __m512i shift) {
    const __m512i above = _mm512_sllv_epi32(_mm512_srli_epi32(number, kScale), shift);
    const __m512i not_rest = _mm512_sllv_epi32(_mm512_set1_epi32(-1), shift);
    return _mm512_ternarylogic_epi32(above, not_rest, number, 0xf2);  // above | rest
  }
  const PopTable& table;
  Bytes coarse, shifts;
};

// The same; a template of both would be compiled for either without these instructions, or for both with them.
__attribute__((noinline, LACONIC_PERMUTES))
size_t pop_whole_bits(uint8_t* symbols, size_t count, Rows& all, const PopTable& table) {
  const PopBits pop(table);
  Rows rows = all;
  size_t done = 0;
  for (; done + kMostLanes <= count && plenty(rows.at); done += kMostLanes)
    keep(pop(rows), rows, table, symbols + done);
  all = rows;
  return done;
}
#undef LACONIC_INLINE
#undef LACONIC_PERMUTES

size_t pop_vectors(uint8_t* symbols, size_t count, const PopTable& table) {
  static const bool permutes = __builtin_cpu_supports("avx512vbmi");
  if (!in_vectors_)
    for (size_t i = 0; i < kMostLanes; ++i) vectors_[i % kStep][i / kStep] = numbers_[i];
  in_vectors_ = true;
  Rows rows = {{}, at_};
  for (size_t v = 0; v < kStep; ++v) rows.numbers[v] = _mm512_load_si512(vectors_[v]);
  const size_t done = permutes && table.bits ? pop_whole_bits(symbols, count, rows, table)
                                             : pop_shares(symbols, count, rows, table);
  for (size_t v = 0; v < kStep; ++v) _mm512_store_si512(vectors_[v], rows.numbers[v]);
  at_ = rows.at;
  return done;
}

// The numbers are where single lanes have them.
void leave_vectors() {
  if (in_vectors_)
    for (size_t i = 0; i < kMostLanes; ++i) numbers_[i] = vectors_[i % kStep][i / kStep];
  in_vectors_ = false;
}

// As vectors have them, which is how they stay from one call to the next.
alignas(64) uint32_t vectors_[kStep][16];
bool in_vectors_ = false;
