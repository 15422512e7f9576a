/* core/crc32c.c: CRC-32C (Castagnoli), as RFC 3720 uses it: the checksum of images. With the CPU's instruction where
 * there is one, else eight bytes at a time by tables. Called by whoever writes or reads images. */
#include "core/core.h"

#include <string.h>

/* Table k holds the CRC of each byte followed by k zero bytes. A CRC is linear: an entry is the XOR of the entries of
 * its bits, which are what is written here. */
#define BIT(i, n, entry) ((i) >> (n)&1 ? entry##u : 0u)
#define ENTRY(i, a, b, c, d, e, f, g, h)                                                                      \
    (BIT(i, 0, a) ^ BIT(i, 1, b) ^ BIT(i, 2, c) ^ BIT(i, 3, d) ^ BIT(i, 4, e) ^ BIT(i, 5, f) ^ BIT(i, 6, g) ^ \
     BIT(i, 7, h))
// clang-format off
#define T0(i) ENTRY(i, 0xf26b8303, 0xe13b70f7, 0xc79a971f, 0x8ad958cf, 0x105ec76f, 0x20bd8ede, 0x417b1dbc, 0x82f63b78)
#define T1(i) ENTRY(i, 0x13a29877, 0x274530ee, 0x4e8a61dc, 0x9d14c3b8, 0x3fc5f181, 0x7f8be302, 0xff17c604, 0xfbc3faf9)
#define T2(i) ENTRY(i, 0xa541927e, 0x4f6f520d, 0x9edea41a, 0x38513ec5, 0x70a27d8a, 0xe144fb14, 0xc76580d9, 0x8b277743)
#define T3(i) ENTRY(i, 0xdd45aab8, 0xbf672381, 0x7b2231f3, 0xf64463e6, 0xe964b13d, 0xd725148b, 0xaba65fe7, 0x52a0c93f)
#define T4(i) ENTRY(i, 0x38116fac, 0x7022df58, 0xe045beb0, 0xc5670b91, 0x8f2261d3, 0x1ba8b557, 0x37516aae, 0x6ea2d55c)
#define T5(i) ENTRY(i, 0xef306b19, 0xdb8ca0c3, 0xb2f53777, 0x6006181f, 0xc00c303e, 0x85f4168d, 0x0e045beb, 0x1c08b7d6)
#define T6(i) ENTRY(i, 0x68032cc8, 0xd0065990, 0xa5e0c5d1, 0x4e2dfd53, 0x9c5bfaa6, 0x3d5b83bd, 0x7ab7077a, 0xf56e0ef4)
#define T7(i) ENTRY(i, 0x493c7d27, 0x9278fa4e, 0x211d826d, 0x423b04da, 0x847609b4, 0x0d006599, 0x1a00cb32, 0x34019664)
// clang-format on
#define X4(T, i) T(i), T((i) + 1), T((i) + 2), T((i) + 3)
#define X16(T, i) X4(T, i), X4(T, (i) + 4), X4(T, (i) + 8), X4(T, (i) + 12)
#define X64(T, i) X16(T, i), X16(T, (i) + 16), X16(T, (i) + 32), X16(T, (i) + 48)
#define X256(T) \
    { X64(T, 0), X64(T, 64), X64(T, 128), X64(T, 192) }

static const uint32_t table[8][256] = {X256(T0), X256(T1), X256(T2), X256(T3), X256(T4), X256(T5), X256(T6), X256(T7)};

static uint64_t load64(const uint8_t *at) {
    uint64_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

uint32_t crc32c_tables(uint32_t crc, const void *data, size_t bytes) {
    const uint8_t *at = data;
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        const uint64_t x = load64(at) ^ crc;
        crc = 0;
        for (int k = 0; k < 8; k++) crc ^= table[7 - k][x >> (8 * k) & 255];
    }
    for (; bytes; bytes--, at++) crc = table[0][(crc ^ *at) & 255] ^ crc >> 8;
    return ~crc;
}

#if defined(EBB_X86)
__attribute__((target("sse4.2"))) static uint32_t crc32c_sse(uint32_t crc, const void *data, size_t bytes) {
    const uint8_t *at = data;
    uint64_t wide = ~crc;
    for (; bytes >= 8; bytes -= 8, at += 8) wide = __builtin_ia32_crc32di(wide, load64(at));
    crc = (uint32_t)wide;
    for (; bytes; bytes--, at++) crc = __builtin_ia32_crc32qi(crc, *at);
    return ~crc;
}
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t bytes) {
#if defined(EBB_X86)
    if (__builtin_cpu_supports("sse4.2")) return crc32c_sse(crc, data, bytes);
#endif
    return crc32c_tables(crc, data, bytes);
}
