/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Stateful Cheetah (docs/cheetah.md): the upper half of TSecr hides the place of the connection in a table.
 * The twin of crates/steering/src/methods/cheetah/{stateful,decide}.rs. */
#ifndef WEIR_METHODS_CHEETAH_STATEFUL_H
#define WEIR_METHODS_CHEETAH_STATEFUL_H

#include "../slots.h"
#include "cheetah.h"

/* Whether the server of a slot is still one of the service's. */
static __always_inline int is_served(const struct table *table, __u64 word)
{
	return server(table, SLOT_SERVER(word)) == SLOT_ID(word);
}

/* What is left to be done of a packet; else the answer is a backend. */
#define STATEFUL_FIRST 0xfffffffe
#define STATEFUL_LOST 0xfffffffd
#define STATEFUL_BARE 0xfffffffc

/* All of these are global, so that the verifier goes through each once, and stand beside each other, as all
 * frames that are open at once have 512 bytes together. */

/* A packet with a good cookie: to its backend, which gets its own timestamp back. */
__noinline __u32 follow_slot(struct xdp_md *ctx, __u32 number, const struct flow_key *key, __u64 hash,
			     __u32 flags)
{
	const struct table *table = AT(tables, number, table_count);

	if (!key)
		return STATEFUL_BARE;
	__u64 stamps = cookie_stamps(ctx, key, flags);

	if (unlikely(!stamps || !(flags & TCP_ACK)))
		return stamps && flags == TCP_SYN ? STATEFUL_FIRST : STATEFUL_BARE;
	__u32 partition = partition_of(table, hash);
	__u32 index = hide(table, hash, stamps >> 16);
	__u64 word = find_slot(partition, index, hash);

	if (likely(word && is_served(table, word))) {
		touch_slot(partition, index, word, flags & (TCP_FIN | TCP_RST));
		if (table->flags & TABLE_ANSWERS && !(flags & QUOTED))
			restore(ctx, table, key, stamps, index, flags);
		return SLOT_ID(word); /* rule: slot.followed */
	}
	/* Its backend is gone, and so is the connection; or it has none. */
	if (word)
		release_slot(partition, index, word);
	else
		lost_cookie(partition, index); /* rule: slot.lost */
	return STATEFUL_LOST;
}

/* A first packet: to the slot of the one before, unless the connection has ended. Two of them at two backends
 * would be answered twice. */
__noinline __u32 again_by_slot(__u32 number, const struct flow_key *given, __u64 hash)
{
	const struct table *table = AT(tables, number, table_count);

	if (!given || !(table->flags & TABLE_ANSWERS))
		return STATEFUL_FIRST;
	OWN_KEY(key, given);
	struct answer *known = bpf_map_lookup_elem(&answers, key);

	if (!known)
		return STATEFUL_FIRST;
	__u32 partition = partition_of(table, hash);
	__u32 index = known->number & COOKIE_NUMBERS;
	__u64 word = find_slot(partition, index, hash);

	if (word && !(known->flags & ANSWER_ENDED) && is_served(table, word) &&
	    !is_down(SLOT_ID(word)))
		return SLOT_ID(word) | CHEETAH_NEW; /* rule: slot.again */
	/* The new connection of the flow must not meet it. */
	if (word)
		release_slot(partition, index, word);
	return STATEFUL_FIRST;
}

/* The same where the backends write the cookies, and no answer says how far a connection is: every flow is in the
 * connection table, too, and its entry names its slot. A first packet of a known flow follows it unless its
 * backend is down, so that nobody moves a live connection by a SYN in its name; to the same slot, unless that
 * is closing or gone. Answers with the slot's index above CHEETAH_NEW, and TOLD_NONE if it got none. */
#define TOLD_NONE (1 << 15)
#define TOLD_SHIFT 17

__noinline __u32 again_told(__u32 number, const struct flow_key *given, __u64 hash)
{
	if (!given)
		return STATEFUL_FIRST;
	OWN_KEY(key, given);
	const struct table *table = AT(tables, number, table_count);
	struct tracked *known = bpf_map_lookup_elem(&connections, key);

	if (!known)
		return STATEFUL_FIRST;
	struct tracked entry = *known;
	struct backend *backend = present(entry.backend);

	if (!entry.number || !backend || !is_of(backend, &entry) ||
	    backend->flags & BACKEND_DOWN || server(table, entry.number - 1) != entry.backend)
		return STATEFUL_FIRST;
	__u32 found = entry.backend | CHEETAH_NEW, partition = partition_of(table, hash);
	__u32 index = (entry.former - 1) & COOKIE_NUMBERS >> others_bits(table);
	__u64 word = entry.former ? find_slot(partition, index, hash) : 0;

	if (word && SLOT_STATE(word) != SLOT_CLOSING && SLOT_ID(word) == entry.backend &&
	    is_served(table, word))
		return found | index << TOLD_SHIFT;
	index = open_slot(number, hash, SLOT_WHERE(entry.backend, entry.number - 1));
	entry.former = index == NO_SLOT ? 0 : index + 1;
	track(key, entry);
	return found | (index == NO_SLOT ? TOLD_NONE : index << TOLD_SHIFT);
}

/* Tells the backend the cookie of a slot, in TSecr, as `first_told` does. What a tier in front has told it in its
 * bits stays. */
__noinline int tell_slot(struct xdp_md *ctx, __u32 number, __u64 hash, __u32 index)
{
	const struct table *table = AT(tables, number, table_count);
	__u64 stamps = find_timestamps(ctx);
	__u32 front = COOKIE_NUMBERS & ~(COOKIE_NUMBERS >> others_bits(table));
	__u32 cookie = ((__u32)stamps >> 16 & front) | hide(table, hash, index);

	if (stamps)
		replace(ctx, stamps, ECHO_AT, TOLD | cookie << 16 | TOLD_MARK);
	return 0;
}

/* Remembers where a first packet went: in a slot; or, in a full partition, in the connection table. */
__noinline int note_first(__u32 number, const struct flow_key *given, __u32 index, __u32 where)
{
	const struct table *table = AT(tables, number, table_count);
	__u32 id = SLOT_ID(where);

	if (!given)
		return 0;
	OWN_KEY(key, given);
	int tells = (table->flags & TABLE_TELLS) != 0;

	if (likely(index != NO_SLOT && !tells)) {
		if (table->flags & TABLE_ANSWERS)
			watch(key, (struct answer){ .number = index }); /* rule: slot.first */
		return 0;
	}
	if (table->flags & TABLE_ANSWERS)
		forget(key);
	struct backend *backend = present(id);

	if (backend)
		track(key, (struct tracked){ .backend = id,
					     .incarnation = backend->incarnation,
					     .former = index == NO_SLOT ? 0 : index + 1,
					     .number = SLOT_SERVER(where) + 1 });
	return 0;
}

__noinline __u32 without_slot(__u32 number, const struct flow_key *key, __u64 hash, __u32 flags,
			      __u32 lost)
{
	if (!key)
		return nowhere(REASON_NO_TABLE);
	return without_cookie(AT(tables, number, table_count), key, hash, flags, lost);
}

static __always_inline __u32 steer_cheetah_stateful(const struct table *table,
						    const struct packet *p, struct question *q)
{
	__u32 number = table - tables;
	struct flow_key key;

	tracked_key(p, table, &key);
	__u32 found = follow_slot(q->ctx, number, &key, q->hash, q->flags);

	int tells = found == STATEFUL_FIRST && table->flags & TABLE_TELLS;

	if (unlikely(tells)) {
		found = again_told(number, &key, q->hash);
		if (found != STATEFUL_FIRST) {
			if (!(found & TOLD_NONE))
				tell_slot(q->ctx, number, q->hash, found >> TOLD_SHIFT);
			found &= SLOT_BACKEND | CHEETAH_NEW;
		}
	} else if (unlikely(found == STATEFUL_FIRST)) {
		found = again_by_slot(number, &key, q->hash);
	}
	if (unlikely(found == STATEFUL_FIRST)) {
		__u32 picked = schedule(table, q->hash);
		__u32 id = server(table, picked);

		if (id == NO_BACKEND) {
			found = nowhere(REASON_NO_BACKEND);
		} else {
			__u32 where = SLOT_WHERE(id, picked);

			__u32 index = open_slot(number, q->hash, where);

			note_first(number, &key, index, where);
			if (unlikely(tells && index != NO_SLOT))
				tell_slot(q->ctx, number, q->hash, index);
			found = id | CHEETAH_NEW;
		}
	} else if (unlikely(found == STATEFUL_LOST || found == STATEFUL_BARE)) {
		found = without_slot(number, &key, q->hash, q->flags, found == STATEFUL_LOST);
	}
	q->counts = (found & CHEETAH_NEW) != 0;
	q->reason = found >> CHEETAH_REASON_SHIFT;
	return found & SLOT_BACKEND;
}

#endif
