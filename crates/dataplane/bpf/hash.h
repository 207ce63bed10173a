/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* The keyed flow hash; the twin of crates/hash and crates/wire/src/hash.rs, which say why it is built so. */
#ifndef WEIR_HASH_H
#define WEIR_HASH_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define IPV4_MAPPED 0xffff0000ULL

struct hash_key {
	__u64 xor;
	__u64 xor_wide;
	__u64 mul1;
	__u64 mul2;
};

static __always_inline __u64 mix(const struct hash_key *key, __u64 x)
{
	x ^= x >> 32;
	x *= key->mul1;
	x ^= x >> 29;
	x *= key->mul2;
	return x ^ (x >> 32);
}

/* high, low: the address as two little-endian words; word: the ports as they stand on the wire. */
static __always_inline __u64 hash_address(const struct hash_key *key, __u64 high, __u64 low,
					  __u32 word)
{
	if (likely(high == 0 && (__u32)low == IPV4_MAPPED))
		return mix(key, ((low & ~0xffffffffULL) | word) ^ key->xor);
	return mix(key, mix(key, low ^ mix(key, high ^ key->xor_wide)) ^ word ^ key->xor);
}

static __always_inline __u32 scale(__u32 hash32, __u32 n)
{
	return ((__u64)hash32 * n) >> 32;
}

#endif
