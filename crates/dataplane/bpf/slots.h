/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Connections by index: ConnTable and ConnStack of stateful Cheetah (docs/cheetah.md). The twin of
 * crates/steering/src/methods/cheetah/table.rs.
 *
 * A slot is somebody's or on its partition's stack. The stack is a list through the slots that are free:
 * each holds how far the next one is from its own successor, so that memory of zeros is a stack of all
 * slots in order, and nobody has to fill it.
 *
 * Many CPUs, and the control plane, take and give back at once, without locks:
 *
 * - The head of a stack is one word: a tag, the number of slots in use, the slot on top. Who takes or gives
 *   back replaces it as a whole by compare-and-swap, and each replacement raises the tag. So a head that
 *   is still the same one says that nothing was taken or given back since it was read, and that the
 *   distance read from the top slot meanwhile is the one that belongs to it (without the tag it could be
 *   that of another use of the slot). The tag comes round after 2^32 changes within one packet.
 * - A slot that was taken is its taker's alone: it is on no stack, and its word still says that it is free,
 *   so that no packet finds it. The hash is written first and the word then, by an exchange, which is a
 *   full barrier. A reader takes the word first. It sees a new word only with the new hash; an old word
 *   with a new hash is another flow's.
 * - Whoever gives a slot back replaces its word by a free one, by compare-and-swap, and only who succeeds
 *   goes on. So it goes back once, however many find that its time is up; and a packet that notes a time
 *   or a state, by compare-and-swap as well, cannot bring it back to life.
 * - Nobody waits: after STACK_TRIES defeats a taker finds the stack empty, and its connection is tracked;
 *   a giver puts the word back, and the next one who looks over the slot tries again. */
#ifndef WEIR_SLOTS_H
#define WEIR_SLOTS_H

#include "maps.h"
#include "table.h"

#define STACK_TRIES 8
#define NO_SLOT PARTITION_SLOTS

/* In a slot's word. */
#define SLOT_STATE(word) ((__u32)(word) >> SLOT_STATE_SHIFT)
#define SLOT_LAST(word) ((__u32)((word) >> SLOT_LAST_SHIFT))
/* The backend, and the number of the server that it is. */
#define SLOT_ID(word) ((__u32)(word) & SLOT_WHO)
#define SLOT_SERVER(word) ((__u32)(word) >> SLOT_SERVER_SHIFT & SLOT_WHO)
#define SLOT_WHERE(id, server) ((id) | (server) << SLOT_SERVER_SHIFT)
#define SLOT_WORD(last, state, where) \
	((__u64)(last) << SLOT_LAST_SHIFT | (__u64)(state) << SLOT_STATE_SHIFT | (where))

/* Behind a tier that has bits of the cookie fewer slots can be told apart, so partitions are cut into as many
 * parts as those bits count. All are numbered as if they were cut into the smallest: each begins at a number of its
 * own, and so do its stack and its slots. */
#define SMALLEST_SLOTS (PARTITION_SLOTS >> MOST_TIER_BITS)

/* By bits of the hash that neither hide an index nor pick a server. */
static __always_inline __u32 partition_of(const struct table *table, __u64 hash)
{
	__u32 bits = table->segment_bits & 7;
	__u32 part = scale(hash >> PARTITION_SHIFT, (__u32)table->fallback << bits);

	return (table->chunks_b << MOST_TIER_BITS) + (part << MOST_TIER_BITS >> bits);
}

/* The slots of each. */
static __always_inline __u32 slots_of(const struct table *table)
{
	return PARTITION_SLOTS >> (table->segment_bits & 7);
}

static __always_inline struct stack *stack_of(__u32 partition)
{
	return AT(stacks, partition, (__u64)partition_count << MOST_TIER_BITS);
}

static __always_inline struct slot *slot_at(__u32 partition, __u32 place)
{
	return AT(slots, (__u64)partition * SMALLEST_SLOTS + place,
		  (__u64)partition_count * PARTITION_SLOTS);
}

static __always_inline __u64 slot_word(const struct slot *slot)
{
	return *(volatile __u64 *)&slot->word;
}

/* The word of a flow's slot; 0 if it is free or another flow's. */
static __always_inline __u64 find_slot(__u32 partition, __u32 index, __u64 hash)
{
	struct slot *slot = slot_at(partition, index);
	__u64 word = slot_word(slot);

	return SLOT_STATE(word) && *(volatile __u64 *)&slot->hash == hash ? word : 0;
}

/* The head after this one. */
static __always_inline __u64 next_head(__u64 head, __u32 used, __u32 top)
{
	return ((head >> HEAD_TAG_SHIFT) + 1) << HEAD_TAG_SHIFT | (used & HEAD_USED) | (top & HEAD_TOP);
}

/* Takes the slot on top of the stack of so many, or NO_SLOT. */
static __always_inline __u32 pop(struct stack *stack, __u32 partition, __u32 count)
{
	for (int i = 0; i < STACK_TRIES; i++) {
		__u64 head = *(volatile __u64 *)&stack->head;
		__u32 top = head & HEAD_TOP;

		if (top >= count)
			return NO_SLOT;
		__u32 next = top + 1 + slot_word(slot_at(partition, top));
		__u64 after = next_head(head, (__u32)head + HEAD_ONE_USED, next);

		if (__sync_val_compare_and_swap(&stack->head, head, after) == head)
			return top;
	}
	return NO_SLOT;
}

/* Gives back a slot whose word was this one; not if it has changed. The functions below are global ones,
 * so that the verifier goes through each once. */
__noinline int release_slot(__u32 partition, __u32 index, __u64 word)
{
	struct stack *stack = stack_of(partition);
	struct slot *slot = slot_at(partition, index);

	if (__sync_val_compare_and_swap(&slot->word, word, 0) != word)
		return 0;
	for (int i = 0; i < STACK_TRIES; i++) {
		__u64 head = *(volatile __u64 *)&stack->head;
		__u64 after = next_head(head, (__u32)head - HEAD_ONE_USED, index);

		*(volatile __u64 *)&slot->word = ((__u32)head - index - 1) & HEAD_TOP;
		if (__sync_val_compare_and_swap(&stack->head, head, after) == head)
			return 1;
	}
	*(volatile __u64 *)&slot->word = word;
	return 0;
}

/* Looks over the next slot of a partition: gives it back if its time is up. */
__noinline int sweep_slot(__u32 partition, __u32 idle, __u32 count)
{
	struct stack *stack = stack_of(partition);
	__u32 index = __sync_fetch_and_add(&stack->hand, 1) & (count - 1);
	__u64 word = slot_word(slot_at(partition, index));
	__u32 state = SLOT_STATE(word);

	if (!state)
		return 0;
	__u32 limit = state == SLOT_OPENING ? OPENING_SECONDS : LINGER_SECONDS;

	if (state == SLOT_OPEN || limit > idle)
		limit = idle;
	__u32 age = control->clock - SLOT_LAST(word);

	/* A clock that was set back makes nobody old. */
	if (age <= limit || (__s32)age < 0)
		return 0;
	return release_slot(partition, index, word);
}

/* Takes a slot for a flow that starts, by the table of this number; answers with its index, or NO_SLOT. */
__noinline __u32 open_slot(__u32 number, __u64 hash, __u32 where)
{
	const struct table *table = AT(tables, number, table_count);
	__u32 partition = partition_of(table, hash);
	__u32 idle = table->segments, count = slots_of(table);
	struct stack *stack = stack_of(partition);

	for (int i = 0; i < SLOTS_SWEPT; i++)
		sweep_slot(partition, idle, count);
	__u32 index = pop(stack, partition, count);

	if (unlikely(index == NO_SLOT)) {
		for (int i = 0; i < SLOTS_SWEPT_FULL; i++)
			sweep_slot(partition, idle, count);
		index = pop(stack, partition, count);
	}
	if (unlikely(index == NO_SLOT)) {
		__sync_fetch_and_add(&stack->full, 1);
		return NO_SLOT;
	}
	struct slot *slot = slot_at(partition, index);

	*(volatile __u64 *)&slot->hash = hash;
	__sync_lock_test_and_set(&slot->word, SLOT_WORD(control->clock, SLOT_OPENING, where));
	return index;
}

/* Notes a packet of the flow whose slot has this word. Written once in a second, but for changes. */
static __always_inline void touch_slot(__u32 partition, __u32 index, __u64 word, int ends)
{
	__u32 state = ends ? SLOT_CLOSING : SLOT_STATE(word);

	if (state == SLOT_OPENING)
		state = SLOT_OPEN;
	__u64 now = SLOT_WORD(control->clock, state, (__u32)word & ((1U << SLOT_STATE_SHIFT) - 1));

	if (unlikely(now != word))
		__sync_val_compare_and_swap(&slot_at(partition, index)->word, word, now);
}

/* A backend's FIN or RST. */
__noinline int end_slot(__u32 partition, __u32 index, __u64 hash)
{
	__u64 word = find_slot(partition, index, hash);

	if (word)
		touch_slot(partition, index, word, 1);
	return 0;
}

/* Gives a flow's slot back; answers with the word that it had, or 0. */
__noinline __u64 close_slot(__u32 partition, __u32 index, __u64 hash)
{
	__u64 word = find_slot(partition, index, hash);

	if (word)
		release_slot(partition, index, word);
	return word;
}

/* Counts a cookie that led to no slot of its flow. */
__noinline int lost_cookie(__u32 partition, __u32 index)
{
	struct stack *stack = stack_of(partition);

	if (SLOT_STATE(slot_word(slot_at(partition, index))))
		__sync_fetch_and_add(&stack->foreign, 1);
	else
		__sync_fetch_and_add(&stack->stale, 1);
	return 0;
}

#endif
