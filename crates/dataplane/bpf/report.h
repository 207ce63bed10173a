/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* What the control plane must learn of flows: starts, ends, activity. */
#ifndef WEIR_REPORT_H
#define WEIR_REPORT_H

#include "maps.h"

/* A flow of which only the exact map knows. A service may have as many there as it leaves free: a flood of one
 * takes half of the room, one of the next half of the rest, and there is always as much again for another. */
static __always_inline int keep_untold(const struct service_state *state, __u32 backend)
{
	struct unreported note = { .backend = backend, .kind = EVENT_START };
	__s64 *own = AT(untold, state->service, table_count / 2);

	if (!bpf_map_update_elem(&unreported, state, &note, BPF_EXIST))
		return 0; /* rule: report.again */
	if (*own < (__s64)untold_room - control->untold &&
	    !bpf_map_update_elem(&unreported, state, &note, BPF_NOEXIST)) {
		__sync_fetch_and_add(own, 1); /* rule: report.aside */
		__sync_fetch_and_add(&control->untold, 1);
		return 0;
	}
	__sync_fetch_and_add(&control->unrecorded, 1); /* rule: report.unrecorded */
	return 0;
}

/* A flow that ends there was never reported, so it is forgotten again. */
static __always_inline int forget_untold(const struct service_state *state)
{
	if (bpf_map_delete_elem(&unreported, state))
		return 0;
	__sync_fetch_and_add(AT(untold, state->service, table_count / 2), -1); /* rule: report.forgotten */
	__sync_fetch_and_add(&control->untold, -1);
	return 0;
}

/* The ring first; if it is full, the exact map. */
static __noinline int report(const struct service_state *state, __u32 backend, __u32 kind)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (event) {
		event->service = state->service; /* rule: report.ring */
		event->backend = backend;
		event->kind = kind;
		event->reserved = 0;
		event->key = state->key;
		event->reserved2 = 0;
		bpf_ringbuf_submit(event, 0);
		return 0;
	}
	return kind == EVENT_END ? forget_untold(state) : keep_untold(state, backend);
}

/* Notes where a flow's next packets go. The twin first: what only it knows does no harm. */
static __always_inline int note_pending(const struct service_state *state, const __u32 *backend)
{
	if (twins && bpf_map_update_elem(&pending_twin, state, backend, BPF_ANY))
		return -1;
	return bpf_map_update_elem(&pending, state, backend, BPF_ANY);
}

/* The tag of a flow in every lane; 0 is that of a lane which nobody has. */
static __always_inline __u64 tags_of(__u64 hash)
{
	__u64 tag = hash >> (64 - TAG_BITS);

	return LANE_ONES * (tag ? tag : 1);
}

/* The bit of the lane with this tag, if there is one. */
static __always_inline __u64 lane_of(__u64 word, __u64 tags)
{
	return ~(((word ^ tags) & LANE_TAGS) + LANE_TAGS) & LANE_ACTIVE;
}

static __always_inline void set_bits(__u64 *word, __u64 bits)
{
	if ((*word & bits) != bits)
		__sync_fetch_and_or(word, bits);
}

/* A flow without a lane at its first place: in its second, or among those that have none. */
__noinline int mark_elsewhere(__u64 hash, __u64 tags, __u64 side)
{
	__u64 slot = (hash >> 22 & (__u32)side) + (side >> 32);
	__u64 *word = AT(marks, slot, mark_words * 2);
	__u64 lane = lane_of(*word, tags);

	if (lane) {
		set_bits(word, lane);
		return 0;
	}
	slot = (hash >> 8 & (stranger_words - 1)) + (side >> 32 ? stranger_words : 0);
	set_bits(AT(strangers, slot, stranger_words * 2),
		 1ULL << (hash >> 58) | 1ULL << (hash >> 52 & 63));
	return 0;
}

/* The word of a filter of watched flows, and a flow's bits there. */
static __always_inline __u64 *watch_word(__u64 side, __u64 hash)
{
	return AT(watched, (hash >> 12 & (__u32)side) + (side >> 32), WATCHED_WORDS);
}

static __always_inline __u64 watch_bits(__u64 hash)
{
	return 1ULL << (hash >> 34 & 63) | 1ULL << (hash >> 40 & 63);
}

/* What is reported is watched, without a word from the control plane; also after its next look, if that
 * has begun. */
__noinline int notice(__u64 hash)
{
	__u64 bits = watch_bits(hash);

	set_bits(watch_word(*(volatile __u64 *)&control->watched_side, hash), bits);
	set_bits(watch_word(*(volatile __u64 *)&control->watched_next, hash), bits);
	return 0;
}

/* Notes that a flow sent something since the control plane last looked: in the lane that it armed for
 * the flow, so that nobody else's packets do. Written once per flow and period. The twin of
 * crates/steering/src/activity.rs, which says how it works. */
static __always_inline void mark(__u64 hash)
{
	__u64 word_of_watched = *watch_word(*(volatile __u64 *)&control->watched_side, hash);

	if (likely(!(word_of_watched >> (hash >> 34 & 63) & word_of_watched >> (hash >> 40 & 63) & 1)))
		return;
	__u64 side = *(volatile __u64 *)&control->mark_side;
	__u64 slot = (hash & (__u32)side) + (side >> 32);
	__u64 *word = AT(marks, slot, mark_words * 2);
	__u64 tags = tags_of(hash);
	__u64 lane = lane_of(*word, tags);

	if (likely(lane))
		set_bits(word, lane);
	else
		mark_elsewhere(hash, tags, side);
}

/* Whether the control plane has armed the flow: it knows that it lives. */
__noinline int is_armed(__u64 hash)
{
	__u64 side = *(volatile __u64 *)&control->mark_side;
	__u64 tags = tags_of(hash);
	__u64 *first = AT(marks, (hash & (__u32)side) + (side >> 32), mark_words * 2);
	__u64 *second = AT(marks, (hash >> 22 & (__u32)side) + (side >> 32), mark_words * 2);

	return (lane_of(*first, tags) | lane_of(*second, tags)) != 0;
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
			return alive; /* rule: seen.known */
		}
		if (!alive && !stale) {
			victim = i;
			stale = 1;
		}
	}
	line->tags[victim & (SEEN_WAYS - 1)] = tag | now; /* rule: seen.new */
	return 0;
}

#endif
