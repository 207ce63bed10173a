/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Stateless Cheetah (docs/cheetah.md): the upper half of TSecr hides the server's number.
 * The twin of crates/steering/src/methods/cheetah/{stateless,decide}.rs. */
#ifndef WEIR_METHODS_CHEETAH_H
#define WEIR_METHODS_CHEETAH_H

#include "../answers.h"
#include "../connections.h"
#include "../icmp.h"
#include "../question.h"
#include "../service.h"
#include "../slots.h"
#include "../table.h"
#include "../tcp_options.h"

/* What it answers beside the backend. */
#define CHEETAH_NEW (1 << 16)
#define CHEETAH_REASON_SHIFT 24

/* Bits of the cookie that are the other tier's: the lower ones in front, the upper ones behind. */
static __always_inline __u32 others_bits(const struct table *table)
{
	return table->segment_bits & 15;
}

/* The number that this tier's part of a cookie hides, or the part that hides a number. */
static __always_inline __u32 hide(const struct table *table, __u64 hash, __u32 number)
{
	return (number ^ hash >> PAD_SHIFT) & COOKIE_NUMBERS >> others_bits(table);
}

/* The same of a whole cookie of a server. */
static __always_inline __u32 number_of(const struct table *table, __u64 hash, __u64 stamps)
{
	return hide(table, hash, (__u32)stamps >> 16 >> others_bits(table));
}

static __always_inline __u32 cookie_of(const struct table *table, __u64 hash, __u32 number)
{
	return hide(table, hash, number) << others_bits(table);
}

/* The backend of a number. */
static __always_inline __u32 server(const struct table *table, __u32 number)
{
	return number < numbers_in(table) ? read_slot(table, number) : NO_BACKEND;
}

/* The same where cookies have one key; of a table with several nobody. */
static __always_inline __u32 plain_server(const struct table *table, __u32 number)
{
	return number < table->slots ? read_slot(table, number) : NO_BACKEND;
}

/* No number of a server. */
#define NO_NUMBER (COOKIE_NUMBERS + 1)

/* One of the two keys behind the list of those that take new connections; without multipliers there is none. */
static __always_inline const struct hash_key *cookie_key(const struct table *table, __u32 which)
{
	__u64 at = (__u64)(table->first_a + table->chunks_a) * CHUNK_BYTES +
		   (which & 1) * sizeof(struct hash_key);

	return (const struct hash_key *)AT(pool, at, pool_bytes - (sizeof(struct hash_key) - 1));
}

/* What is hidden under one of the keys of a table whose cookies say under which: a number, or one's cover. */
__noinline __u32 hide_keyed(__u32 at, __u64 hash, __u32 number, __u32 which)
{
	const struct table *table = AT(tables, at, table_count);
	const struct hash_key *key = cookie_key(table, which);

	if (!key->mul1)
		return NO_NUMBER;
	return (number ^ mix(key, hash) >> PAD_SHIFT) & COOKIE_NUMBERS >> others_bits(table) >> 1;
}

/* The number that a cookie names, by whichever key it says. */
static __always_inline __u32 number_named(const struct table *table, __u64 hash, __u64 stamps)
{
	__u32 part = ((__u32)stamps >> 16 & COOKIE_NUMBERS) >> others_bits(table);

	if (unlikely(table->segment_bits & COOKIES_KEYED))
		return hide_keyed(table - tables, hash, part >> 1, part);
	return number_of(table, hash, stamps);
}

/* The cookie that tells a number, by the key that issues. */
static __always_inline __u32 told_cookie(const struct table *table, __u64 hash, __u32 number)
{
	__u32 which = table->segment_bits / COOKIES_SECOND & 1;

	if (likely(!(table->segment_bits & COOKIES_KEYED)))
		return cookie_of(table, hash, number);
	return (hide_keyed(table - tables, hash, number, which) << 1 | which) << others_bits(table);
}

/* The number of one of those that take new connections, in the order of their backends. */
static __always_inline __u32 serving(const struct table *table, __u32 which)
{
	__u64 at = (__u64)table->first_a * CHUNK_BYTES + which * 2;

	return *(__u16 *)AT(pool, at, pool_bytes - 1);
}

/* A number for a first packet, by weight; COOKIE_NUMBERS + 1 if nobody takes it. */
static __always_inline __u32 schedule(const struct table *table, __u64 hash)
{
	__u32 servers = table->per_chunk;

	if (table->flags & TABLE_SCHEDULER)
		return scheduled(table - tables, hash, BY_NUMBER);
	return servers ? serving(table, scale(hash, servers)) : COOKIE_NUMBERS + 1;
}

/* Whether a backend is among those that take new connections. Without branches, which the verifier
 * would follow one by one. */
static __always_inline int serves(const struct table *table, __u32 id)
{
	__u32 first = 0, left = table->per_chunk;

	for (int i = 0; i < 16; i++) {
		__u32 half = left / 2;
		__s64 less = (__s64)server(table, serving(table, first + half - 1)) - id;

		asm volatile("" : "+r"(less));
		first += half & less >> 63;
		left -= half;
	}
	if (server(table, serving(table, first)) < id)
		first++;
	return first < table->per_chunk && server(table, serving(table, first)) == id;
}

/* A backend that writes cookies itself, and is told them, is taken to do so until a packet of a flow that the
 * connection table has there echoes no good one. This is noted of that backend alone: the others' connections
 * lose nothing by it, whoever has forged the echo. */
__noinline int note_bare(__u32 id)
{
	if (control->bare != ~0U)
		__sync_fetch_and_add(&control->bare, 1);
	struct load *of = AT(loads, id, backend_count);

	if (!(of->echoes & ECHOES_BARE))
		__sync_fetch_and_or(&of->echoes, ECHOES_BARE);
	return 0;
}

/* The number of the server where an entry has its flow; not if that is gone. */
static __always_inline __u32 latest_number(const struct table *table, const struct tracked *known)
{
	struct backend *backend = present(known->backend);

	if (!known->number || !backend || !is_of(backend, known) ||
	    server(table, known->number - 1) != known->backend)
		return NO_NUMBER;
	return known->number - 1;
}

/* The same of where it was before. */
static __always_inline __u32 former_number(const struct table *table, const struct tracked *known)
{
	if (!known->former || server(table, known->former - 1) == NO_BACKEND)
		return NO_NUMBER;
	return known->former - 1;
}

/* Where the backends write the cookies, nobody knows whether a SYN in the name of a known flow is sent anew, is
 * a new connection on old ports, or is forged, nor whether the connection at the old backend goes on. So a
 * flow whose backend takes no new connections is placed anew, and its entry keeps both: neither loses what
 * its cookie says for the other (`doubted`). There is no room for a third: then the SYN follows one of the two.
 * Returns a number, or NO_NUMBER if the flow is to be placed. */
__noinline __u32 known_told(__u32 at, const struct flow_key *given)
{
	if (!given)
		return NO_NUMBER;
	OWN_KEY(key, given);
	const struct table *table = AT(tables, at, table_count);
	struct tracked *known = bpf_map_lookup_elem(&connections, key);

	if (!known)
		return NO_NUMBER;
	__u32 latest = latest_number(table, known), former = former_number(table, known);
	__u32 id = known->backend, before = server(table, former) & SLOT_BACKEND;
	int up = latest != NO_NUMBER && !is_down(id);

	/* One that writes no cookies is followed while it drains, too: only the entry leads there. */
	if (up && (AT(loads, id, backend_count)->echoes & ECHOES_BARE || serves(table, id)))
		return latest;
	if (former != NO_NUMBER && !is_down(before) &&
	    ((latest != NO_NUMBER && !up) || serves(table, before))) {
		track(key, (struct tracked){ .backend = before,
					     .incarnation = AT(backends, before, backend_count)->incarnation,
					     .number = former + 1,
					     .former = latest == NO_NUMBER ? 0 : latest + 1 });
		return former;
	}
	return up && former != NO_NUMBER ? latest : NO_NUMBER;
}

/* Notes where such a flow was placed. */
__noinline int note_told(__u32 at, const struct flow_key *given, __u32 number)
{
	if (!given)
		return 0;
	OWN_KEY(key, given);
	const struct table *table = AT(tables, at, table_count);
	struct tracked *known = bpf_map_lookup_elem(&connections, key);
	__u32 latest = known ? latest_number(table, known) : NO_NUMBER;
	__u32 former = known ? former_number(table, known) : NO_NUMBER;
	__u32 id = server(table, number);
	struct backend *backend = id == NO_BACKEND ? NULL : present(id);

	if (!backend || (latest != NO_NUMBER && former != NO_NUMBER))
		return 0;
	if (latest != NO_NUMBER)
		former = latest;
	track(key, (struct tracked){ .backend = id,
				     .incarnation = backend->incarnation,
				     .number = number + 1,
				     .former = former == NO_NUMBER || former == number ? 0 : former + 1 });
	return 0;
}

static __always_inline __u32 nowhere(enum reason reason)
{
	return NO_BACKEND | reason << CHEETAH_REASON_SHIFT;
}

/* A packet without a good cookie: where the connection table has its flow, or where the scheduler
 * sends it. One that may be followed by others is remembered. `lost`: it has a cookie. */
static __always_inline __u32 without_cookie(const struct table *table, const struct flow_key *given,
					    __u64 hash, __u8 flags, int lost)
{
	OWN_KEY(key, given);
	int first = flags == TCP_SYN, tells = (table->flags & TABLE_TELLS) != 0;
	int told = tells && table->method == METHOD_CHEETAH;
	struct tracked *known = NULL;

	if (first && told) {
		__u32 number = known_told(table - tables, key);

		if (number != NO_NUMBER)
			return server(table, number) | CHEETAH_NEW;
	} else {
		known = bpf_map_lookup_elem(&connections, key);
	}
	if (known) {
		__u32 id = known->backend;
		struct backend *backend = present(id);

		/* A first packet is placed even if the flow is known: it is a new connection on old
		 * ports. One that is repeated goes where it went before. */
		if (backend && is_of(backend, known) &&
		    (!known->number || server(table, known->number - 1) == id) &&
		    !(first && (backend->flags & BACKEND_DOWN || (!tells && !serves(table, id))))) {
			if (lost && told && !(flags & QUOTED))
				note_bare(id);
			return id | (first ? CHEETAH_NEW : 0); /* rule: cheetah.known */
		}
	}
	if (flags & QUOTED)
		return nowhere(REASON_UNKNOWN_QUOTE); /* rule: cheetah.unknown_quote */
	if (lost && table->codec)
		return nowhere(REASON_NO_COOKIE); /* rule: cheetah.refused */
	__u32 number = schedule(table, hash);
	__u32 id = server(table, number);

	if (id == NO_BACKEND)
		return nowhere(REASON_NO_BACKEND); /* rule: cheetah.no_backend */
	if (lost || flags & TCP_RST)
		return id | (first ? CHEETAH_NEW : 0); /* rule: cheetah.stray */
	struct backend *backend = present(id);

	if (told)
		note_told(table - tables, key, number); /* rule: cheetah.noted */
	else if (backend)
		track(key, (struct tracked){ .backend = id,
					     .incarnation = backend->incarnation,
					     .number = number + 1 });
	return id | CHEETAH_NEW; /* rule: cheetah.tracked */
}

/* The number for a first packet: where one went before, unless the connection has ended. Two of them at
 * two backends would be answered twice, and the cookie is one's. */
static __always_inline __u32 first_answered(const struct table *table, const struct flow_key *given,
					    __u64 hash)
{
	OWN_KEY(key, given);
	struct answer *known = bpf_map_lookup_elem(&answers, key);

	if (known && !(known->flags & ANSWER_ENDED)) {
		__u32 number = known->number;
		__u32 id = server(table, number);

		if (id != NO_BACKEND && !is_down(id))
			return number;
	}
	__u32 number = schedule(table, hash);
	__u32 id = server(table, number);

	if (id != NO_BACKEND) {
		int counts = (table->flags & TABLE_COUNTS) != 0;

		watch(key, (struct answer){ .number = number,
					    .flags = counts ? ANSWER_COUNTED : 0 });
		if (counts)
			count_connection(id, 1);
	}
	return number;
}

/* The connection counts no more among the open ones, if it does. */
static __always_inline void uncount(const struct table *table, struct answer *known)
{
	if (!(known->flags & ANSWER_COUNTED))
		return;
	__u32 id = server(table, known->number);

	known->flags &= ~ANSWER_COUNTED;
	if (id != NO_BACKEND)
		count_connection(id, -1);
}

/* As find_timestamps says; of a quoted packet, which the backend sent, TSval in the place of TSecr: it is
 * what the client would have echoed. */
static __always_inline __u64 cookie_stamps(struct xdp_md *ctx, const struct flow_key *key, __u32 flags)
{
	if (key->protocol != PROTOCOL_TCP)
		return 0;
	return flags & QUOTED ? quoted_timestamps(ctx) : find_timestamps(ctx);
}

/* Gives the backend its own timestamp back, in place of the cookie. */
static __always_inline void restore(struct xdp_md *ctx, const struct table *table,
				    const struct flow_key *given, __u64 stamps, __u32 number,
				    __u8 flags)
{
	OWN_KEY(key, given);
	struct answer *known = bpf_map_lookup_elem(&answers, key);

	if (!known || known->number != number) {
		watch(key, (struct answer){ .number = number });
		known = bpf_map_lookup_elem(&answers, key);
		if (!known)
			return;
	}
	if (flags & (TCP_FIN | TCP_RST)) {
		known->flags |= ANSWER_ENDED;
		uncount(table, known);
	}
	replace(ctx, stamps, ECHO_AT, incoming(known, stamps));
}

/* A packet from a service, if its answers pass here and the connection is known; the key is that of the
 * client's packets. Returns the reason for which the kernel forwards it. Global, so that the verifier goes
 * through it once. */
__noinline int answer(struct xdp_md *ctx, const struct flow_key *given, __u8 flags)
{
	if (!given)
		return REASON_NO_SERVICE;
	OWN_KEY(key, given);
	__u32 protocol = PROTOCOL_TCP << 16;
	struct vip *vip = find_vip(key->dst[0], key->dst[1], key->ports >> 16 | protocol);

	if (!vip && control->unusual & UNUSUAL_ANY_PORT)
		vip = find_vip(key->dst[0], key->dst[1], protocol);
	if (!vip)
		return REASON_NO_SERVICE;
	__u32 at = *(volatile __u32 *)&vip->table;

	/* Whatever its lists of sources and its caps say: answers are not judged. */
	if (at >= table_count) {
		at &= ~JUDGED_FLAGS;
		if (at >= table_count)
			return REASON_NO_SERVICE;
	}
	const struct table *table = AT(tables, at, table_count);
	struct answer *known;

	/* Of a method of cookies: no other has the flag. */
	if (!(table->flags & TABLE_ANSWERS) || !(known = bpf_map_lookup_elem(&answers, key)))
		return REASON_NO_SERVICE;
	int by_slot = table->method != METHOD_CHEETAH;
	__u32 number = known->number;
	__u64 stamps = find_timestamps(ctx);
	__u64 hash = hash_address(&table->key, key->src[0], key->src[1],
				  table->flags & TABLE_CLIENT ? 0 : key->ports);

	if (flags & (TCP_FIN | TCP_RST)) {
		known->flags |= ANSWER_ENDED;
		if (by_slot)
			end_slot(partition_of(table, hash), number & COOKIE_NUMBERS, hash);
		uncount(table, known);
	}
	if (!stamps) {
		if ((flags & (TCP_SYN | TCP_ACK)) != (TCP_SYN | TCP_ACK))
			return REASON_ANSWER; /* rule: answer.bare */
		/* The backend has no timestamps, so there will be no cookies. */
		__u32 id = server(table, number);

		if (by_slot) {
			__u64 word = close_slot(partition_of(table, hash), number & COOKIE_NUMBERS,
						hash);

			number = SLOT_SERVER(word); /* rule: answer.closes_slot */
			id = word && server(table, number) == SLOT_ID(word) ? SLOT_ID(word) :
									      NO_BACKEND;
		}
		struct backend *backend = id == NO_BACKEND ? NULL : present(id);

		uncount(table, known);
		forget(key);
		if (backend)
			track(key, (struct tracked){ .backend = id,
						     .incarnation = backend->incarnation,
						     .number = number + 1 });
		return REASON_ANSWER; /* rule: answer.without */
	}
	void *option = (void *)(long)ctx->data + (stamps >> 32 & 0x3fff);

	if (option + sizeof(struct timestamps) > (void *)(long)ctx->data_end)
		return REASON_ANSWER;
	__u32 tsval = bpf_ntohl(((struct timestamps *)option)->value);

	replace(ctx, stamps, VALUE_AT,
		outgoing(known, tsval, hide(table, hash, number), flags & TCP_SYN));
	return REASON_ANSWER; /* rule: answer.written */
}

/* A first packet whose backend writes the cookies: tells it, in TSecr, which means nothing without ACK
 * (RFC 7323 section 3.2). The flow is remembered, for the SYN may come again, and the backend may write
 * none. */
static __always_inline __u32 first_told(struct xdp_md *ctx, const struct table *table,
					const struct flow_key *key, __u64 hash, __u64 stamps)
{
	__u32 number = known_told(table - tables, key);

	if (number == NO_NUMBER) {
		number = schedule(table, hash);
		if (server(table, number) == NO_BACKEND)
			return nowhere(REASON_NO_BACKEND);
		note_told(table - tables, key, number);
	}
	replace(ctx, stamps, ECHO_AT, TOLD | told_cookie(table, hash, number) << 16 | TOLD_MARK);
	return server(table, number) | CHEETAH_NEW;
}

/* The cookie of a packet names this backend; but there have been packets that do not echo the cookie that
 * their backend was told, and of those some look right by chance. Where its flow is known says, unless the
 * backend there is known to write cookies, or the flow has been at the one that is named before. */
__noinline __u32 doubted(__u32 at, const struct flow_key *given, __u32 named)
{
	if (!given)
		return named;
	OWN_KEY(key, given);
	const struct table *table = AT(tables, at, table_count);
	struct tracked *known = bpf_map_lookup_elem(&connections, key);

	if (!known)
		return named;
	__u32 id = known->backend;
	struct backend *backend = present(id);
	struct load *of = AT(loads, id, backend_count);

	/* Made here, where Linux 6.1 knows the bound: in branches that cannot be, it forgets it. */
	asm volatile("" : "+r"(of));
	if (!backend || !is_of(backend, known) ||
	    (known->number && server(table, known->number - 1) != id))
		return named;
	if (id == named) {
		if (!(of->echoes & ECHOES_OWN))
			__sync_fetch_and_or(&of->echoes, ECHOES_OWN);
		return named;
	}
	__u32 former = former_number(table, known);

	return of->echoes == ECHOES_OWN || server(table, former) == named ? named : id;
}

/* Apart from the paths of other methods, which have nothing to keep for it so. */
__noinline __u32 cheetah(struct xdp_md *ctx, const struct table *table,
				const struct flow_key *key, __u64 hash, __u8 flags)
{
	if (!table || !key)
		return nowhere(REASON_NO_TABLE);
	__u64 stamps = cookie_stamps(ctx, key, flags);

	if (!stamps)
		return without_cookie(table, key, hash, flags, 0);
	if (likely(flags & TCP_ACK)) {
		__u32 number = number_named(table, hash, stamps);
		__u32 id = server(table, number);

		if (unlikely(id == NO_BACKEND))
			return without_cookie(table, key, hash, flags, 1); /* rule: cheetah.bad_cookie */
		if (table->flags & TABLE_ANSWERS && !(flags & QUOTED))
			restore(ctx, table, key, stamps, number, flags); /* rule: cheetah.restored_end */
		else if (unlikely(table->flags & TABLE_TELLS && control->bare))
			return doubted(table - tables, key, id);
		return id;
	}
	if (flags != TCP_SYN)
		return without_cookie(table, key, hash, flags, 0);
	if (table->flags & TABLE_TELLS)
		return first_told(ctx, table, key, hash, stamps); /* rule: cheetah.told */
	__u32 number = table->flags & TABLE_ANSWERS ? first_answered(table, key, hash) :
						      schedule(table, hash);
	__u32 id = server(table, number);

	return id == NO_BACKEND ? nowhere(REASON_NO_BACKEND) : id | CHEETAH_NEW;
}

/* A segment in the middle of its connection, whose cookie names a backend, as nearly all do; ASK_APART for
 * all others. */
__noinline __u32 cheetah_plain(struct xdp_md *ctx, const struct table *table,
			       const struct flow_key *key, __u64 hash)
{
	if (!table || !key)
		return ASK_APART;
	__u64 stamps = find_timestamps(ctx);
	__u32 number = number_of(table, hash, stamps);
	__u32 id = plain_server(table, number);

	if (unlikely(!stamps || id == NO_BACKEND))
		return ASK_APART;
	if (table->flags & TABLE_ANSWERS)
		restore(ctx, table, key, stamps, number, TCP_ACK); /* rule: cheetah.restored */
	else if (unlikely(table->flags & TABLE_TELLS && control->bare))
		return ASK_APART;
	return id;
}

static __always_inline __u32 steer_cheetah_plain(const struct table *table, const struct packet *p,
						 struct question *q)
{
	struct flow_key key;

	if (p->protocol != PROTOCOL_TCP || q->flags != TCP_ACK)
		return ASK_APART;
	tracked_key(p, table, &key);
	return cheetah_plain(q->ctx, table, &key, q->hash);
}

static __always_inline __u32 steer_cheetah(const struct table *table, const struct packet *p,
					   struct question *q)
{
	struct flow_key key;

	tracked_key(p, table, &key);
	__u32 found = cheetah(q->ctx, table, &key, q->hash, q->flags);

	q->counts = (found & CHEETAH_NEW) != 0;
	q->reason = found >> CHEETAH_REASON_SHIFT;
	return found & SLOT_BACKEND;
}

#endif
