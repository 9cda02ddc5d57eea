// Elements in registers: words of memory, combined cell by cell. A cell is as many elements as make up 4 bytes, or one
// of 8. Little-endian: the first element is in the low bits.
#pragma once

#include "device/accesses.cuh"
#include "device/numbers.cuh"

namespace theseus::device {

template <int kElementBytes>
struct CellOf {
  using Cell = U32;
};
template <>
struct CellOf<8> {
  using Cell = U64;
};

template <class Numbers>
struct Cells {
  using Code = typename Numbers::Code;
  using Cell = typename CellOf<sizeof(Code)>::Cell;
  static constexpr int kWords = sizeof(Cell) / 4;
  static constexpr int kEach = sizeof(Cell) / sizeof(Code);

  template <int kPackWords>
  THESEUS_INLINE static Cell get(const Pack<kPackWords>& pack, int index) {
    if constexpr (kWords == 2) {
      return static_cast<U64>(pack.word[2 * index + 1]) << 32 | pack.word[2 * index];
    } else {
      return pack.word[index];
    }
  }
  template <int kPackWords>
  THESEUS_INLINE static void put(Pack<kPackWords>& pack, int index, Cell cell) {
    pack.word[kWords * index] = static_cast<U32>(cell);
    if constexpr (kWords == 2) pack.word[2 * index + 1] = static_cast<U32>(cell >> 32);
  }

  THESEUS_INLINE static Cell combine(Cell left, Cell right) {
    if constexpr (Numbers::kConverts) return call_combine(left, right);
    return each(left,
                [right](Code code, int shift) { return Numbers::combine(code, static_cast<Code>(right >> shift)); });
  }
  THESEUS_INLINE static Cell scale(Cell cell, Code factor) {
    if constexpr (Numbers::kConverts) return call_scale(cell, factor);
    return each(cell, [factor](Code code, int) { return Numbers::scale(code, factor); });
  }

 private:
  template <class Change>
  THESEUS_INLINE static Cell each(Cell cell, Change change) {
    Cell result = 0;
    THESEUS_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int shift = static_cast<int>(i * 8 * sizeof(Code));
      result |= static_cast<Cell>(change(static_cast<Code>(cell >> shift), shift)) << shift;
    }
    return result;
  }
  // Where an element takes tens of instructions, the text of a cell's stands once in a kernel: a call is little beside
  // it, and compilers take seconds over a hundred copies.
  THESEUS_CALL static Cell call_combine(Cell left, Cell right) {
    return each(left,
                [right](Code code, int shift) { return Numbers::combine(code, static_cast<Code>(right >> shift)); });
  }
  THESEUS_CALL static Cell call_scale(Cell cell, Code factor) {
    return each(cell, [factor](Code code, int) { return Numbers::scale(code, factor); });
  }
};

// Cells [kFrom, kTo) of `held`, the left operands.
template <class Numbers, int kFrom, int kTo, int kWords>
THESEUS_INLINE void combine(Pack<kWords>& held, const Pack<kWords>& next) {
  using Of = Cells<Numbers>;
  THESEUS_UNROLL
  for (int i = kFrom; i < kTo; ++i) Of::put(held, i, Of::combine(Of::get(held, i), Of::get(next, i)));
}

template <class Numbers, int kFrom, int kTo, int kWords>
THESEUS_INLINE void scale(Pack<kWords>& pack, U64 factor) {
  using Of = Cells<Numbers>;
  THESEUS_UNROLL
  for (int i = kFrom; i < kTo; ++i) {
    Of::put(pack, i, Of::scale(Of::get(pack, i), static_cast<typename Numbers::Code>(factor)));
  }
}

template <class Numbers, int kWords>
inline constexpr int kCellsOf = kWords / Cells<Numbers>::kWords;

}  // namespace theseus::device
