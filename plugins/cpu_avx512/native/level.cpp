// Which instruction sets this CPU has and its operating system keeps the registers of. Baseline x86-64 code.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "abi.h"

namespace {

struct Leaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Leaf leaf(unsigned number, unsigned sub) {
  Leaf l;
  if (!__get_cpuid_count(number, sub, &l.a, &l.b, &l.c, &l.d)) return Leaf();
  return l;
}

bool all(unsigned word, unsigned bits) { return (word & bits) == bits; }

// The register states that the system saves on a context switch: XCR0.
unsigned saved_states() {
  if (!all(leaf(1, 0).c, bit_OSXSAVE)) return 0;
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

constexpr unsigned kYmm = 0x6, kZmm = 0xe6;
constexpr unsigned kTiles = 0x60000;
constexpr unsigned kAvx512Bf16 = 1u << 5;  // leaf 7.1, EAX
constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;  // leaf 7.0, EDX

// Linux saves tiles only for a process that has asked for it, and refuses where a thread's signal stack is too small.
bool tiles_permitted() {
  constexpr long kRequest = 0x1023 /* ARCH_REQ_XCOMP_PERM */, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

int32_t find_level() {
  const Leaf one = leaf(1, 0), seven = leaf(7, 0);
  const unsigned saved = saved_states();
  if (!all(saved, kYmm) || !all(one.c, bit_FMA | bit_F16C | bit_AVX) || !all(seven.b, bit_AVX2)) return BB_LEVEL_NONE;
  if (!all(saved, kZmm) || !all(seven.b, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL))
    return BB_LEVEL_AVX2;
  if (!all(seven.c, bit_AVX512VNNI)) return BB_LEVEL_AVX512;
  if (!all(leaf(7, 1).a, kAvx512Bf16)) return BB_LEVEL_AVX512_VNNI;
  return all(saved, kTiles) && all(seven.d, kAmxBf16 | kAmxTile) && tiles_permitted() ? BB_LEVEL_AVX512_AMX : BB_LEVEL_AVX512_BF16;
}

bool is_amd() {
  const Leaf vendor = leaf(0, 0);
  return vendor.b == signature_AMD_ebx && vendor.c == signature_AMD_ecx && vendor.d == signature_AMD_edx;
}

}  // namespace

extern "C" int32_t bb_host_level(void) {
  static const int32_t level = find_level();  // kept: in a virtual machine CPUID costs microseconds
  return level;
}

// On Zen 4 and later VDPBF16PS runs at the rate of a fused multiply-add, with twice its products. On Sapphire Rapids it
// takes four times as long (0.69 and 0.17 ns, measured): widening to float32 is twice as fast there.
extern "C" int32_t bb_preferred_level(void) {
  static const bool fast_dot = is_amd();
  const int32_t host = bb_host_level();
  return host == BB_LEVEL_AVX512_BF16 && !fast_dot ? BB_LEVEL_AVX512_VNNI : host;
}

extern "C" int32_t bb_abi(void) { return BB_ABI; }
