// SPDX-License-Identifier: Apache-2.0
//
// Which frames are lost to bit errors, by their length; for every program that loses frames.

#define ALL (1ull << 31)
#define POWERS 17 /* of two, of bytes: also a burst that is not cut yet is shorter than 2^17 */

/* Of each power of two k: the share, times 2^31, of stretches of 2^k bytes without a bit error. */
struct survival {
	__u64 of[POWERS];
};

/* Whether a frame arrives whole; draw: evenly from 0 to 2^31 - 1. */
static __always_inline int survives(const struct survival *survival, __u32 bytes, __u32 draw)
{
	__u64 share = ALL;
#pragma unroll
	for (int k = 0; k < POWERS; k++)
		if (bytes & (1u << k))
			share = share * survival->of[k] >> 31;
	return draw < share;
}

/* The n-th number of a sequence (splitmix64, Steele, Lea and Flood, OOPSLA 2014). */
static __always_inline __u64 drawn(__u64 seed, __u64 n)
{
	__u64 z = seed + (n + 1) * 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}
