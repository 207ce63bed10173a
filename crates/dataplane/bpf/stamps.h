/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* The timestamps of one connection that carry a cookie: what its client gets, and what its backend gets
 * back. The twin of crates/steering/src/methods/cheetah/{answers,repair}.rs, with one version bit, which say
 * why. The balancer in the way of the answers has it (answers.h), and so has the program of backends that
 * answer clients directly (crates/agent/bpf).
 *
 * Each direction writes fields of its own, as packets of both may be in hand at once. */
#ifndef WEIR_STAMPS_H
#define WEIR_STAMPS_H

#include "abi.h"

/* Bits of the clock that stay in the timestamp: 16, but where a test wants a wrap every second. */
#ifndef LOW_BITS
#define LOW_BITS 16
#endif
#define LOW_MASK ((1U << LOW_BITS) - 1)
/* The bits of the clock that an upper half of 16 bits and the lower one tell. */
#define NOTED_MASK (~0U >> (16 - LOW_BITS))
/* A version and a lower half, without the cookie. */
#define VERSION_AND_LOW (1U << 31 | LOW_MASK)
#define VERSIONED_WRAPS (2U << LOW_BITS)
#define DEAF_AFTER (ANSWER_PATIENCE >> (16 - LOW_BITS))
#define VALUE_AT 2 /* in the option */
#define ECHO_AT 6
#define CHECK_AT 16 /* in the TCP header */

static __always_inline int is_later(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

/* The version of another upper half that follows a packet of `version` and lower half `before`. */
static __always_inline __u32 version_after(__u32 version, __u16 before, __u16 low)
{
	return (version + (low < before)) & 1;
}

/* The first timestamp of the backend. */
static __always_inline void begin(struct answer *a, __u32 tsval)
{
	__u32 version = 0;

	if (a->flags & ANSWER_HEARD)
		version = version_after(a->heard >> 31, a->heard & LOW_MASK, tsval & LOW_MASK);
	else
		a->heard = tsval & LOW_MASK;
	a->uppers[version] = tsval >> LOW_BITS;
	a->uppers[version ^ 1] = (tsval >> LOW_BITS) - 1;
	a->version = version;
	a->newest = tsval;
	a->flags = (a->flags & (ANSWER_ENDED | ANSWER_COUNTED)) | ANSWER_STARTED;
}

/* A newer timestamp than all before. */
static __always_inline __u32 advance(struct answer *a, __u32 tsval)
{
	__u16 low = tsval & LOW_MASK, upper = tsval >> LOW_BITS;
	__u32 version = a->version & 1;

	if (upper != a->uppers[version])
		version = version_after(version, a->newest & LOW_MASK, low);
	if (!(a->flags & ANSWER_UNHEARD)) {
		a->unheard = tsval;
		a->flags |= ANSWER_UNHEARD;
	}
	if (tsval - a->unheard >= DEAF_AFTER && is_later(a->heard, version << 31 | low))
		version = version_after(a->heard >> 31, a->heard & LOW_MASK, low);
	a->uppers[version] = upper;
	a->version = version;
	a->newest = tsval;
	return version;
}

/* The TSval that the client must get; `starts`: with the SYN of the backend. */
static __noinline __u32 outgoing(struct answer *a, __u32 tsval, __u32 cookie, int starts)
{
	if (!a)
		return tsval;
	if (starts && a->flags & ANSWER_STARTED && tsval - a->newest >= ANSWER_SAME_CLOCK)
		a->flags &= ANSWER_ENDED | ANSWER_COUNTED;
	if (!(a->flags & ANSWER_STARTED))
		begin(a, tsval);
	__u32 version = a->version & 1;

	if (a->newest - tsval >= VERSIONED_WRAPS)
		version = advance(a, tsval);
	else if (a->uppers[version] != (__u16)(tsval >> LOW_BITS))
		version ^= 1;
	return version << 31 | cookie << 16 | (tsval & LOW_MASK);
}

/* The TSecr that the backend must get. */
static __noinline __u32 incoming(struct answer *a, __u32 tsecr)
{
	if (!a)
		return 0;
	__u32 echo = tsecr & VERSION_AND_LOW;

	if (!(a->flags & ANSWER_STARTED)) {
		a->heard = echo;
		a->flags |= ANSWER_HEARD;
		return 0;
	}
	if (a->heard != echo) {
		a->heard = echo;
		a->flags &= ~ANSWER_UNHEARD;
	}
	__u32 restored = (__u32)a->uppers[tsecr >> 31] << LOW_BITS | (tsecr & LOW_MASK);
	__u32 behind = (a->newest - restored) & NOTED_MASK;

	/* Not sent yet, so this is the same version's use before. */
	if (behind > (NOTED_MASK >> 1) + 1)
		behind += VERSIONED_WRAPS;
	return a->newest - behind;
}

#endif
