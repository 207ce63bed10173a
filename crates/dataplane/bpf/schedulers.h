/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Who gets a first packet, where that is not the hash's to say (docs/schedulers.md): by turns, the less
 * loaded of two, or the least loaded. The twin of crates/steering/src/schedule.rs.
 *
 * All of it stands off the ways of known flows, and of services without a scheduler. Its parts are global
 * functions of plain numbers, so that the verifier goes through each once, however often it is called. */
#ifndef WEIR_SCHEDULERS_H
#define WEIR_SCHEDULERS_H

#include "question.h"
#include "table.h"

/* What an entry of a table's list is: a backend, or in Cheetah's tables a number. */
#define BY_BACKEND 0
#define BY_NUMBER 1

/* No entry: of a list that is empty. Neither a backend nor a number of Cheetah's. */
#define NO_ENTRY 0xffff
/* Of what `listed` answers: the entry, its backend above it, and whether that takes new flows. */
#define LISTED_ID(listed) ((listed) >> 16 & SLOT_BACKEND)
#define LISTED_TAKES 0x80000000

static __always_inline __u32 read_listed(__u32 number, __u32 at, __u32 kind)
{
	const struct table *table = AT(tables, number, table_count);
	__u32 entry = read_slot_of(kind == BY_NUMBER ? table->first_a : table->first_slot, at);
	__u32 id = entry & SLOT_BACKEND;

	if (kind == BY_NUMBER)
		id = entry < numbers_in(table) ? read_slot(table, entry) & SLOT_BACKEND : NO_BACKEND;
	if (id == NO_BACKEND || is_down(id))
		return entry | id << 16;
	return entry | id << 16 | LISTED_TAKES;
}

__noinline __u32 listed(__u32 number, __u32 at, __u32 kind)
{
	return read_listed(number, at, kind);
}

/* With one more connection. Packets of both directions may count below zero for a moment. */
static __always_inline __u64 more(__s64 value)
{
	value = value < 0 ? 0 : value;
	return (value < MOST_LOAD ? value : MOST_LOAD - 1) + 1;
}

/* Whether one more connection weighs less at the first than at the second. */
static __always_inline int weighs_less(__u32 one, __u32 other)
{
	const struct load *a = AT(loads, one, backend_count);
	const struct load *b = AT(loads, other, backend_count);

	return more(a->value) * b->weight < more(b->value) * a->weight;
}

__noinline int is_less(__u32 one, __u32 other)
{
	return weighs_less(one, other);
}

/* Entries that are next to each other in the list are far apart in time: `stride` of schedule.rs. */
__noinline __u32 in_turn(__u32 number, __u32 entries)
{
	__u64 *next = AT(turns, number / 2, table_count / 2);
	__u64 turn = __sync_fetch_and_add(next, 1);

	if (!entries)
		return 0;
	const struct table *table = AT(tables, number, table_count);

	/* Where connections have slots, which grow old after so many seconds, partitions have its place. */
	return turn % entries * (table->segments ? table->chunks_a : table->fallback) % entries;
}

__noinline __u32 of_two(__u32 number, __u64 hash, __u32 entries, __u32 kind)
{
	__u32 first = scale(hash, entries);
	__u32 second = first + 1 + scale(hash >> 32, entries - 1);

	second = second >= entries ? second - entries : second;
	__u32 one = listed(number, first, kind), other = listed(number, second, kind);

	/* Who takes no new flow has the less to do for it. */
	if ((one ^ other) & LISTED_TAKES)
		return one & LISTED_TAKES ? one : other; /* rule: schedule.one_takes */
	return is_less(LISTED_ID(other), LISTED_ID(one)) ? other : one;
}

/* The less loaded of the best so far, if there is one, and the entry at a place. It calls nothing: this is as
 * deep as the stack goes. */
__noinline __u32 better(__u32 number, __u32 at, __u32 kind, __u32 best)
{
	__u32 here = read_listed(number, at, kind);

	if (!(here & LISTED_TAKES) || !AT(loads, LISTED_ID(here), backend_count)->weight)
		return best;
	return !best || weighs_less(LISTED_ID(here), LISTED_ID(best)) ? here : best;
}

/* The same of some entries from a place on. Whoever is seen twice is not better for it. */
#define AT_A_TIME 8

__noinline __u32 best_from(__u32 number, __u32 from, __u32 entries, __u32 kind, __u32 best)
{
	if (!entries)
		return best;
	for (__u32 i = 0; i < AT_A_TIME; i++)
		best = better(number, (from + i) % entries, kind, best);
	return best;
}

/* The least loaded; of equals the first after a place that the hash says. */
__noinline __u32 least(__u32 number, __u64 hash, __u32 entries, __u32 kind)
{
	__u32 start = scale(hash, entries), best = 0;

	for (__u32 i = 0; i < LEAST_MOST && i < entries; i += AT_A_TIME)
		best = best_from(number, start + i, entries, kind, best);
	return best ? best : listed(number, start, kind);
}

/* The entry for a flow that begins. */
__noinline __u32 scheduled(__u32 number, __u64 hash, __u32 kind)
{
	const struct table *table = AT(tables, number, table_count);
	__u32 entries = kind == BY_NUMBER ? table->per_chunk : table->slots;
	__u32 how = table->flags & TABLE_SCHEDULER;
	__u32 found = NO_ENTRY;

	if (!entries)
		return NO_ENTRY; /* rule: schedule.empty */
	if (how == TABLE_LEAST)
		return least(number, hash, entries, kind) & 0xffff; /* rule: schedule.least */
	for (int i = 0; i < SECOND_TRIES; i++) {
		found = how == TABLE_TURNS ? listed(number, in_turn(number, entries), kind) :
					     of_two(number, hash, entries, kind);
		if (found & LISTED_TAKES)
			break;
		hash = mix(&table->key, hash + NEXT_TRY);
	}
	return found & 0xffff;
}

/* A connection was opened at a backend, or has ended. */
__noinline int count_connection(__u32 id, int by)
{
	__sync_fetch_and_add(&AT(loads, id, backend_count)->value, (__s64)by);
	return 0;
}

#endif
