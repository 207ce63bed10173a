/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* What is noted of packets while somebody looks at them (`weir trace`).
 *
 * This file says nothing in the program that packets usually go through. The build compiles the same
 * sources once more, with WEIR_TRACED, and with a mark in the place of each comment that names a rule;
 * the control plane puts that program in the place of the other one for as long as somebody looks
 * (crates/dataplane/src/kernel/trace.rs). So nobody pays for it but who asks. */
#ifndef WEIR_TRACE_H
#define WEIR_TRACE_H

#ifdef WEIR_TRACED
#include <stddef.h>
#endif

#ifndef WEIR_TRACED

#define NOTE_FLOW(p) ((void)0)
#define NOTE_SERVICE(number) ((void)0)
#define NOTE_BACKEND(id) ((void)0)
#define NOTE_REASON(reason) ((void)0)
#define NOTE_WAY(ifindex) ((void)0)
#define LOOK_AT(ctx) ((void)0)
#define LOOKED_AT(verdict) (verdict)
#define INLINE_UNTRACED __always_inline

#else

/* With what is noted in them there is no room on the stack for one function in the other: before Linux 6.8 each
 * takes a multiple of 32 bytes of the 512. */
#define INLINE_UNTRACED __noinline

#define TRACE_HEAD 192 /* bytes of a frame, as it came and as it leaves */
#define TRACE_RULES 64 /* a power of two */

#pragma clang diagnostic push
#pragma clang diagnostic error "-Wpadded"

/* A packet, and what became of it. */
struct sample {
	__u64 time; /* nanoseconds of the monotonic clock */
	__u64 src[2];
	__u64 dst[2];
	__u32 ports;
	__u32 ifindex;
	__u32 way; /* the interface that it leaves by; 0: the same */
	__u32 queue;
	__u32 length;
	__u32 length_after;
	__u32 service; /* TRACE_NONE: none */
	__u32 backend; /* the same */
	__u32 verdict; /* XDP_ */
	__u32 reason;
	__u8 protocol; /* 0: it has no flow */
	__u8 tcp_flags;
	__u8 reserved[2];
	__u16 kept; /* of the frame as it came */
	__u16 kept_after;
	__u32 rule_count; /* if there are more than there is room for, the last ones are there */
	__u32 reserved2;
	__u16 rules[TRACE_RULES];
	__u8 before[TRACE_HEAD];
	__u8 after[TRACE_HEAD];
};

/* Which packets are looked at. */
struct wanted {
	__u64 until;	 /* of the monotonic clock: who looks says again and again that it still does */
	__u64 address[2]; /* either end of the flow is in this network */
	__u64 mask[2];
	__u32 port; /* of either end, as on the wire; 0: any */
	__u32 protocol; /* 0: any */
	__u32 service; /* TRACE_NONE: any, also none */
	__u32 backend; /* the same */
	__u32 reason; /* the same */
	__u32 verdicts; /* a bit for each XDP_ */
	__u32 every;	/* of those, one in so many */
	__u32 follow;	/* flows are followed, one in so many, a power of two; 0: none (follow.h) */
	__u64 salt;	/* which ones */
	__u64 salt_before;
};

struct trace_counts {
	__u64 seen;    /* packets while somebody looked */
	__u64 matched; /* that are wanted */
	__u64 lost;    /* of which the ring had no room for so many */
	__u64 followed; /* connections whose following has begun */
	__u64 checked; /* packets of those */
	__u64 moved;   /* that went to another backend than the one before */
	__u64 orphaned; /* the same, but the backend before is gone */
};

#pragma clang diagnostic pop

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sample);
} sampled SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wanted);
} wanted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct trace_counts);
} trace_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} samples SEC(".maps");

/* What is noted on a packet's way: by each processor for itself, and where a store reaches it without a
 * branch or a function, for neither of which the deepest functions have stack left. */
struct trail {
	__u64 src[2];
	__u64 dst[2];
	__u32 ports;
	__u32 service;
	__u32 backend;
	__u32 reason;
	__u32 way;
	__u8 protocol;
	__u8 tcp_flags;
	__u8 armed;
	__u8 reserved;
	__u64 rule_count;
	__u16 rules[TRACE_RULES];
};

/* With more processors, some take notes over each other's. */
#define TRAILS 1024

struct trail trails[TRAILS] SEC(".data.trails") = {};

#define TRAIL (&trails[bpf_get_smp_processor_id() & (TRAILS - 1)])
#define RULE_MARK(rule)                                                                            \
	({                                                                                         \
		struct trail *trail = TRAIL;                                                       \
                                                                                                   \
		trail->rules[trail->rule_count++ & (TRACE_RULES - 1)] = (rule);                    \
		0;                                                                                 \
	})
#define NOTE_FLOW(p)                                                                               \
	({                                                                                         \
		struct trail *trail = TRAIL;                                                       \
                                                                                                   \
		trail->src[0] = (p)->src[0];                                                       \
		trail->src[1] = (p)->src[1];                                                       \
		trail->dst[0] = (p)->dst[0];                                                       \
		trail->dst[1] = (p)->dst[1];                                                       \
		trail->ports = (p)->ports;                                                         \
		trail->protocol = (p)->protocol;                                                   \
		trail->tcp_flags = (p)->tcp_flags;                                                 \
	})
#define NOTE_SERVICE(number) (TRAIL->service = (number))
#define NOTE_BACKEND(id) (TRAIL->backend = (id))
#define NOTE_REASON(value) (TRAIL->reason = (value))
#define NOTE_WAY(ifindex) (TRAIL->way = (ifindex))

/* The beginning of a frame; returns how much of it. */
static __always_inline __u32 keep_head(struct xdp_md *ctx, __u8 *to, __u32 length)
{
	__u64 before_last = (length < TRACE_HEAD ? length : TRACE_HEAD) - 1ULL;

	/* Verifiers before Linux 6.8 do not see that what is not 0 is at least 1. */
	asm volatile("" : "+r"(before_last));
	if (before_last >= TRACE_HEAD || bpf_xdp_load_bytes(ctx, 0, to, before_last + 1))
		return 0;
	return before_last + 1;
}

__noinline int look_at(struct xdp_md *ctx)
{
	__u32 key = 0;
	__u64 now = bpf_ktime_get_ns();
	struct sample *sample = bpf_map_lookup_elem(&sampled, &key);
	struct wanted *what = bpf_map_lookup_elem(&wanted, &key);
	struct trace_counts *counts = bpf_map_lookup_elem(&trace_counts, &key);

	if (!sample || !what || !counts)
		return 0;
	struct trail *trail = TRAIL;

	trail->armed = 0;
	if (now >= *(volatile __u64 *)&what->until)
		return 0;
	counts->seen++;
	__builtin_memset(trail, 0, offsetof(struct trail, rules));
	trail->service = TRACE_NONE;
	trail->backend = TRACE_NONE;
	trail->armed = 1;
	sample->time = now;
	sample->ifindex = ctx->ingress_ifindex;
	sample->queue = ctx->rx_queue_index;
	sample->length = bpf_xdp_get_buff_len(ctx);
	sample->kept = keep_head(ctx, sample->before, sample->length);
	return 0;
}

static __always_inline int within(const struct wanted *what, const __u64 *address)
{
	return (address[0] & what->mask[0]) == what->address[0] &&
	       (address[1] & what->mask[1]) == what->address[1];
}

static __always_inline int is_wanted(const struct wanted *what, const struct trail *trail,
				     __u32 verdict)
{
	if (!(what->verdicts >> (verdict & 31) & 1) ||
	    (what->reason != TRACE_NONE && what->reason != trail->reason) ||
	    (what->service != TRACE_NONE && what->service != trail->service) ||
	    (what->backend != TRACE_NONE && what->backend != trail->backend) ||
	    (what->protocol && what->protocol != trail->protocol) ||
	    (what->port && what->port != (trail->ports & 0xffff) &&
	     what->port != trail->ports >> 16))
		return 0;
	/* Without a mask, also what has no flow. */
	return !(what->mask[0] | what->mask[1]) ||
	       (trail->protocol && (within(what, trail->src) || within(what, trail->dst)));
}

static __noinline void follow(const struct wanted *what, const struct trail *trail,
			      struct trace_counts *counts);

__noinline int looked(struct xdp_md *ctx, int verdict)
{
	__u32 key = 0;
	struct sample *sample = bpf_map_lookup_elem(&sampled, &key);
	struct wanted *what = bpf_map_lookup_elem(&wanted, &key);
	struct trace_counts *counts = bpf_map_lookup_elem(&trace_counts, &key);
	struct trail *trail = TRAIL;

	if (!sample || !what || !counts || !trail->armed)
		return verdict;
	trail->armed = 0;
	if (what->follow && (verdict == XDP_TX || verdict == XDP_REDIRECT))
		follow(what, trail, counts);
	if (!is_wanted(what, trail, verdict))
		return verdict;
	__u64 number = counts->matched++;

	if (what->every > 1 && number % what->every)
		return verdict;
	sample->kept_after = 0;
	sample->length_after = 0;
	if (verdict == XDP_TX || verdict == XDP_REDIRECT) {
		sample->length_after = bpf_xdp_get_buff_len(ctx);
		sample->kept_after = keep_head(ctx, sample->after, sample->length_after);
	}
	sample->src[0] = trail->src[0];
	sample->src[1] = trail->src[1];
	sample->dst[0] = trail->dst[0];
	sample->dst[1] = trail->dst[1];
	sample->ports = trail->ports;
	sample->protocol = trail->protocol;
	sample->tcp_flags = trail->tcp_flags;
	sample->service = trail->service;
	sample->backend = trail->backend;
	sample->reason = trail->reason;
	sample->way = trail->way;
	sample->verdict = verdict;
	sample->rule_count = trail->rule_count;
	__builtin_memcpy(sample->rules, trail->rules, sizeof(sample->rules));
	if (bpf_ringbuf_output(&samples, sample, sizeof(*sample), 0))
		counts->lost++;
	return verdict;
}

#define LOOK_AT(ctx) look_at(ctx)
/* The verdict on a packet, at the end of its way. */
#define LOOKED_AT(verdict) looked(ctx, verdict)

#endif
#endif
