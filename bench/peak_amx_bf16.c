/* SPDX-License-Identifier: Apache-2.0 */
#include "peak.h"

#include <immintrin.h>
#include <string.h>

double peak_amx_bf16(uint64_t rounds)
{
    uint8_t config[64] __attribute__((aligned(64))) = {1};
    static const uint8_t zeros[1024] __attribute__((aligned(64)));
    for (int i = 0; i < 8; i++) {
        config[16 + 2 * i] = 64;
        config[48 + i] = 16;
    }
    __asm__ volatile("" ::: "memory"); /* the compiler does not see that the next instruction reads all of it */
    _tile_loadconfig(config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, zeros, 64);
    _tile_loadd(5, zeros, 64);
    _tile_loadd(6, zeros, 64);
    _tile_loadd(7, zeros, 64);
    for (uint64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return (double)rounds * 4 * 16 * 16 * 32 * 2;
}
