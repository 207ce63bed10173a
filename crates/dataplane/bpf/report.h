/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* What the control plane must learn of flows: starts, ends, activity. */
#ifndef WEIR_REPORT_H
#define WEIR_REPORT_H

#include "maps.h"

/* The ring first; if it is full, the exact map. A flow that ends there was never reported, so it
 * is forgotten again. */
static __noinline int report(const struct service_state *state, __u32 backend, __u32 kind)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (event) {
		event->service = state->service;
		event->backend = backend;
		event->kind = kind;
		event->reserved = 0;
		event->key = state->key;
		event->reserved2 = 0;
		bpf_ringbuf_submit(event, 0);
		return 0;
	}
	if (kind == EVENT_END) {
		bpf_map_delete_elem(&unreported, state);
		return 0;
	}
	struct unreported note = { .backend = backend, .kind = kind };

	if (bpf_map_update_elem(&unreported, state, &note, BPF_ANY))
		__sync_fetch_and_add(&control->unrecorded, 1);
	return 0;
}

/* One bit for each flow that sent something since the control plane last looked. A bit shared by
 * two flows errs on the safe side: an idle flow is kept. Written once per flow and period. */
static __always_inline void mark(__u64 hash)
{
	__u32 slot = (hash & (mark_words - 1)) + (control->mark_side & 1) * mark_words;
	__u64 *word = AT(marks, slot, mark_words * 2);
	__u64 bit = 1ULL << (hash >> 58);

	if (!(*word & bit))
		__sync_fetch_and_or(word, bit);
}

/* Tells the first packet of a UDP flow, which has no SYN: known if it was seen in this generation
 * or the one before. A tag has 62 bits, so a new flow is taken for a known one with probability
 * 2^-59; a known one that was evicted counts as new, which only repeats its report. */
static __always_inline int seen_before(__u64 hash, __u32 service)
{
	__u64 tag = hash + service * SEEN_STRIDE;
	__u32 slot = scale(tag >> 32, seen_lines);

	struct seen_line *line = AT(seen, slot, seen_lines);
	__u64 now = control->seen_generation & 3;
	__u64 before = now == 1 ? 3 : now - 1;
	__u32 victim = (tag >> 29) & (SEEN_WAYS - 1);
	int stale = 0;

	tag &= ~3ULL;
#pragma unroll
	for (__u32 i = 0; i < SEEN_WAYS; i++) {
		__u64 generation = line->tags[i] & 3;
		int alive = generation == now || generation == before;

		if ((line->tags[i] & ~3ULL) == tag) {
			if (generation != now)
				line->tags[i] = tag | now;
			return alive;
		}
		if (!alive && !stale) {
			victim = i;
			stale = 1;
		}
	}
	line->tags[victim & (SEEN_WAYS - 1)] = tag | now;
	return 0;
}

#endif
