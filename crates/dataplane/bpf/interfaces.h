/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* What became of frames, by the interface that they came by. The build makes a program of its own that counts
 * so, so that all others have no instruction for it; the one that takes notes is told whether it is to. */
#ifndef WEIR_INTERFACES_H
#define WEIR_INTERFACES_H

#include "maps.h"

#if !defined(WEIR_BY_INTERFACE) && !defined(WEIR_TRACED)

#define OWN_ANSWER(verdict) (verdict)
#define COUNT_PASSED(ctx, verdict) (verdict)
#define COUNTED(ctx, verdict) (verdict)

#else

#define INTERFACES 1024 /* a power of two */
#define INTERFACE_PROBES 8

#pragma clang diagnostic push
#pragma clang diagnostic error "-Wpadded"

/* The order of crates/dataplane/src/kernel/interfaces.rs. */
struct interface_counts {
	__u64 ifindex; /* 0: nobody's yet */
	__u64 forwarded;
	__u64 passed;
	__u64 dropped; /* or answered by the program itself, as in struct outcome */
};

#pragma clang diagnostic pop

/* Each CPU takes a place for an interface when its first frame comes, so the same one may stand in other places on
 * others. The last place is of all that find none. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, INTERFACES + 1);
	__type(key, __u32);
	__type(value, struct interface_counts);
} interfaces SEC(".maps");

#ifdef WEIR_TRACED
#define COUNTS_INTERFACES by_interface
#else
#define COUNTS_INTERFACES 1
#endif

/* What a verdict has beside it on its way to COUNTED: the frame is the program's own answer, which does not count
 * as forwarded; or it is counted already. */
#define VERDICT_ANSWER 0x100
#define VERDICT_COUNTED 0x200
#define VERDICT 0xff

#define OWN_ANSWER(verdict)                                                                          \
	(COUNTS_INTERFACES && (verdict) == XDP_TX ? (verdict) | VERDICT_ANSWER : (verdict))
/* The program behind this one may have the last word. */
#define COUNT_PASSED(ctx, verdict)                                                                 \
	(COUNTS_INTERFACES ? count_interface(ctx, verdict) | VERDICT_COUNTED : (verdict))
/* The verdict for the kernel. */
#define COUNTED(ctx, verdict)                                                                      \
	(COUNTS_INTERFACES ? count_interface(ctx, verdict) : (verdict))

static __always_inline struct interface_counts *counts_of(__u32 ifindex)
{
	__u32 at = ifindex & (INTERFACES - 1);

	for (int i = 0; i < INTERFACE_PROBES; i++) {
		struct interface_counts *counts = bpf_map_lookup_elem(&interfaces, &at);

		if (!counts)
			return NULL;
		if (likely(counts->ifindex == ifindex))
			return counts;
		if (!counts->ifindex) {
			counts->ifindex = ifindex;
			return counts;
		}
		at = (at + 1) & (INTERFACES - 1);
	}
	at = INTERFACES;
	return bpf_map_lookup_elem(&interfaces, &at);
}

/* Global, so that the verifier goes through it once, and no way has to keep anything for it. */
__noinline int count_interface(struct xdp_md *ctx, int verdict)
{
	if (verdict & VERDICT_COUNTED)
		return verdict & VERDICT;
	struct interface_counts *counts = counts_of(ctx->ingress_ifindex);

	if (counts) {
		if (verdict == XDP_TX || verdict == XDP_REDIRECT)
			counts->forwarded++;
		else if (verdict == XDP_PASS)
			counts->passed++;
		else /* An answer of its own is marked, and so is none of these. */
			counts->dropped++;
	}
	return verdict & VERDICT;
}

#endif
#endif
