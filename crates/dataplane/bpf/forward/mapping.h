/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Connections under full NAT: which port of the balancer's each has towards its backend. The twin of
 * crates/plane/src/forward/mapping.rs; docs/forwarding.md says why it is built so.
 *
 * There is one table for both directions, and it is found from either. A key and the flow give MAPPING_TRIES
 * sources (address and port of the balancer's), always the same ones; a source and the backend's end give one
 * place in the table. On the way there the places of the flow's sources are looked through for the one that the
 * flow has; on the way back the packet itself names the place. So nothing is chained, moved or given back: a
 * place whose connection has been silent for its time is free for whoever has a source that leads there, and
 * still its own until somebody comes.
 *
 * Many CPUs look and claim at once, without locks. Who claims a place replaces its word, by compare-and-swap, by
 * one that says that it is being written, writes it, and puts the word of a mapping there by an exchange, which
 * is a full barrier. The word counts the claims: who has read a mapping reads its word once more, and if it is
 * another bearer's, has found nothing. */
#ifndef WEIR_FORWARD_MAPPING_H
#define WEIR_FORWARD_MAPPING_H

#include "l2.h"

#define NO_MAPPING 0xffffffff
#define MAPPING_AT_WORK 0xfffffffe

/* What a packet does with its mapping: flags of TCP, and these. */
#define SIGN_BACKEND 0x100 /* it is the backend's */
#define SIGN_QUOTED 0x200 /* an error quotes it: nothing is made or noted */
#define SIGN_FIN 1
#define SIGN_SYN 2
#define SIGN_RST 4

/* The ends of an answer's connection: what its source and its destination become. */
struct ends {
	struct translation source;
	struct translation target;
};

/* What is at hand while a packet is translated. There is no room on the stack for it. */
struct being_translated {
	struct packet packet;
	struct flow_key flow;
	struct ends ends;
	struct translated key;
	__u16 origin; /* of the mapping that was found or made: another flow may claim its place the next moment */
	__u16 port;
	__u64 hash; /* of which its sources come */
	__u64 end;  /* of the backend's end */
	__u32 id;
	__u32 signs;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct being_translated);
} being_translated SEC(".maps");

static __always_inline __u32 mapping_clock(void)
{
	return bpf_ktime_get_ns() >> MAPPING_TICK_SHIFT;
}

static __always_inline __u64 mapping_word(const struct mapping *mapping)
{
	return *(volatile __u64 *)&mapping->word;
}

static __always_inline int has_ended(__u64 word)
{
	const __u32 both = MAPPING_CLIENT_ENDED | MAPPING_BACKEND_ENDED;

	return word & MAPPING_RESET || (word & both) == both;
}

/* Whether the backend of a connection has gone: it is over then. */
static __always_inline int is_abandoned(const struct mapping *mapping)
{
	const struct backend *backend = AT(backends, mapping->backend, backend_count);

	return !(backend->flags & BACKEND_PRESENT) || /* rule: mapping.gone */
	       backend->incarnation != mapping->incarnation;
}

/* Whether a place may be claimed. A clock that is a little behind another CPU's makes nobody old. */
static __always_inline int is_vacant(__u64 word, const struct mapping *mapping, __u32 now)
{
	if (!(word & (MAPPING_HELD | MAPPING_BUSY)))
		return 1; /* rule: mapping.never */
	__u32 which = !(word & MAPPING_ANSWERED)		? MAPPING_OPENING :
		      has_ended(word) || is_abandoned(mapping)	? MAPPING_CLOSED :
		      mapping->protocol == PROTOCOL_TCP		? MAPPING_TCP :
								  MAPPING_UDP;
	__s32 age = now - (__u32)(word >> 32);

	return !(word & MAPPING_BUSY) && age > (__s32)control->mapping_ticks[which]; /* rule: mapping.aged */
}

/* Of the backend's end. */
static __always_inline __u64 hash_end(const __u64 *address, __u16 port, __u32 protocol)
{
	return hash_address(&control->mapping_key, address[0], address[1], port | protocol << 16);
}

static __always_inline __u32 mapping_place(__u64 end, __u32 origin, __u16 port)
{
	return scale(mix(&control->mapping_key, end ^ ((__u64)origin << 16 | port)) >> 32,
		     mapping_count);
}

/* How often a packet's note is tried again that another processor's came before: the two FINs of a connection often
 * come at once, and one that is not noted would keep its port for the time of an open connection. */
#define MAPPING_ATTEMPTS 3

/* What a mapping's word becomes by a packet. */
static __always_inline __u64 touched(struct mapping *mapping, __u64 word, __u32 signs, __u32 now)
{
	__u32 flags = word;

	/* The client uses its port anew, as it would if it stood before the backend itself. */
	if ((signs & (SIGN_SYN | SIGN_BACKEND)) == SIGN_SYN && has_ended(word)) {
		flags &= MAPPING_CLAIMS | MAPPING_HELD; /* rule: mapping.anew */
		mapping->since = now;
	}
	if (signs & SIGN_BACKEND)
		flags |= MAPPING_ANSWERED; /* rule: mapping.answered */
	if (signs & SIGN_FIN)
		flags |= signs & SIGN_BACKEND ? MAPPING_BACKEND_ENDED : MAPPING_CLIENT_ENDED; /* rule: mapping.ended */
	/* One that nobody believed is followed by others. */
	if (signs & SIGN_RST)
		flags |= MAPPING_RESET; /* rule: mapping.reset */
	else
		flags &= ~MAPPING_RESET;
	return (__u64)now << 32 | flags;
}

/* Notes a packet. Written once a tick, but for changes. */
static __always_inline void touch_mapping(struct mapping *mapping, __u64 word, __u32 signs,
					  __u32 now)
{
	if (signs & SIGN_QUOTED)
		return; /* rule: mapping.quoted */
	__u64 found;

	for (int i = 0; i < MAPPING_ATTEMPTS; i++) {
		__u64 after = touched(mapping, word, signs, now);

		if (likely(after == word))
			return; /* rule: mapping.noted */
		found = __sync_val_compare_and_swap(&mapping->word, word, after); /* rule: mapping.touched */
		/* Whoever has claimed it has another connection. */
		if (found == word || (found ^ word) & (MAPPING_CLAIMS | MAPPING_BUSY))
			return; /* rule: mapping.written */
		word = found;
	}
}

/* A source that a flow may have, and where its mapping stands then. */
struct source {
	__u32 at;
	__u16 origin;
	__u16 port;
};

static __always_inline struct source source_of(const struct port_pool *pool, __u64 flow, __u64 end,
					       __u32 number)
{
	__u64 hash = mix(&control->mapping_key, flow ^ number);
	struct source source = {
		.origin = pool->first + scale(hash >> 32, pool->addresses),
		.port = bpf_htons(pool->first_port + scale(hash, pool->ports)),
	};

	source.at = mapping_place(end, source.origin, source.port);
	return source;
}

static __always_inline int is_mapping_of(const struct mapping *mapping,
					 const struct being_translated *now)
{
	const struct flow_key *flow = &now->flow;
	__u32 id = now->id;

	return mapping->client[1] == flow->src[1] && mapping->ports == flow->ports &&
	       mapping->client[0] == flow->src[0] && mapping->vip[1] == flow->dst[1] &&
	       mapping->vip[0] == flow->dst[0] && mapping->protocol == flow->protocol &&
	       mapping->backend == id && mapping->port == now->port &&
	       mapping->origin == now->origin &&
	       mapping->incarnation == AT(backends, id, backend_count)->incarnation;
}

/* Of a flow to this backend: the backend's end. */
static __always_inline __u64 end_of(const struct flow_key *flow, __u32 id)
{
	const struct backend *backend = AT(backends, id, backend_count);
	__u16 port = backend->port ? backend->port : flow->ports >> 16;

	return hash_end((const __u64 *)backend->address, port, flow->protocol);
}

/* Of which its sources come. */
static __always_inline __u64 hash_sources(const struct flow_key *flow, __u64 end)
{
	const struct hash_key *key = &control->mapping_key;
	__u64 hash = hash_address(key, flow->src[0], flow->src[1], flow->ports) + end;

	return mix(key, hash ^ hash_address(key, flow->dst[0], flow->dst[1], flow->protocol));
}

/* Looks at the source with this number: its place in the table if the flow has it, else NO_MAPPING, or
 * MAPPING_AT_WORK if it is vacant. Global, so that the verifier goes through it once. */
__noinline __u32 try_source(struct being_translated *now, __u32 number)
{
	if (!now)
		return NO_MAPPING;
	const struct backend *backend = AT(backends, now->id, backend_count);
	struct source source =
		source_of((const void *)backend->source, now->hash, now->end, number);
	struct mapping *mapping = AT(mappings, source.at, mapping_count);
	__u64 word = mapping_word(mapping);

	/* Compared from there. In registers they would have to go to the stack meanwhile, and kernels before 6.8
	 * round a function's up to 32 bytes, of the 512 that all of a chain of calls has. */
	now->origin = source.origin;
	now->port = source.port;
	asm volatile("" ::: "memory");
	if ((word & (MAPPING_HELD | MAPPING_BUSY)) == MAPPING_HELD && is_mapping_of(mapping, now)) {
		touch_mapping(mapping, word, now->signs, mapping_clock());
		return source.at; /* rule: mapping.found */
	}
	return is_vacant(word, mapping, mapping_clock()) ? MAPPING_AT_WORK : NO_MAPPING; /* rule: mapping.others */
}

/* Makes the flow's mapping of a source that was vacant just now; its place, or MAPPING_AT_WORK if somebody else
 * did. Global, so that the verifier goes through it once. */
__noinline __u32 claim_mapping(struct being_translated *now, __u32 number)
{
	if (!now)
		return NO_MAPPING;
	const struct backend *backend = AT(backends, now->id, backend_count);
	struct source source =
		source_of((const void *)backend->source, now->hash, now->end, number);
	struct mapping *mapping = AT(mappings, source.at, mapping_count);
	__u32 clock = mapping_clock();
	__u64 word = mapping_word(mapping);
	__u64 claims = (word + 1) & MAPPING_CLAIMS;

	if (!is_vacant(word, mapping, clock) ||
	    __sync_val_compare_and_swap(&mapping->word, word, claims | MAPPING_BUSY) != word)
		return MAPPING_AT_WORK; /* rule: mapping.lost */
	mapping->client[0] = now->flow.src[0];
	mapping->client[1] = now->flow.src[1];
	mapping->vip[0] = now->flow.dst[0];
	mapping->vip[1] = now->flow.dst[1];
	mapping->ports = now->flow.ports;
	mapping->port = source.port;
	mapping->origin = source.origin;
	mapping->backend = now->id;
	mapping->protocol = now->flow.protocol;
	mapping->since = clock;
	mapping->incarnation = backend->incarnation;
	__u64 flags = MAPPING_HELD | (now->signs & SIGN_FIN ? MAPPING_CLIENT_ENDED : 0) |
		      (now->signs & SIGN_RST ? MAPPING_RESET : 0);

	__sync_lock_test_and_set(&mapping->word, (__u64)clock << 32 | flags | claims);
	now->origin = source.origin;
	now->port = source.port;
	return source.at; /* rule: mapping.claimed */
}

/* The place of a flow's mapping on its way to a backend, which is made if there is none; NO_MAPPING if it can
 * have none. */
static __always_inline __u32 mapping_there(struct being_translated *now)
{
	__u32 vacant = MAPPING_TRIES;

	now->end = end_of(&now->flow, now->id);
	now->hash = hash_sources(&now->flow, now->end);
	for (__u32 number = 0; number < MAPPING_TRIES; number++) {
		__u32 at = try_source(now, number);

		if (at < MAPPING_AT_WORK)
			return at; /* rule: mapping.there */
		if (at == MAPPING_AT_WORK && number < vacant)
			vacant = number; /* rule: mapping.vacant */
	}
	if (now->signs & SIGN_QUOTED || vacant >= MAPPING_TRIES)
		return NO_MAPPING; /* rule: mapping.none */
	__u32 at = claim_mapping(now, vacant);

	/* Another CPU was there first, which had another flow: a sender of TCP tries again. */
	return at == MAPPING_AT_WORK ? NO_MAPPING : at;
}

/* Fills in what becomes of a packet from a backend, of this flow, to a source with this number; whether there
 * is a mapping. Global, so that the verifier goes through it once. */
__noinline int mapping_back(const struct flow_key *flow, __u32 origin, __u32 signs, struct ends *ends)
{
	if (!flow || !ends)
		return 0;
	__u16 from = flow->ports, port = flow->ports >> 16;
	__u64 end = hash_end(flow->src, from, flow->protocol);
	struct mapping *mapping = AT(mappings, mapping_place(end, origin, port), mapping_count);
	__u64 word = mapping_word(mapping);

	if ((word & (MAPPING_HELD | MAPPING_BUSY)) != MAPPING_HELD || mapping->port != port ||
	    mapping->origin != origin || mapping->protocol != flow->protocol)
		return 0; /* rule: mapping.unknown */
	__u32 id = mapping->backend, incarnation = mapping->incarnation;
	const struct backend *backend = AT(backends, id, backend_count);
	const __u64 *address = (const __u64 *)backend->address;
	__u32 ports = mapping->ports;
	__u16 listens = backend->port ? backend->port : ports >> 16;

	if (address[0] != flow->src[0] || address[1] != flow->src[1] || listens != from ||
	    backend->incarnation != incarnation || !(backend->flags & BACKEND_PRESENT))
		return 0; /* rule: mapping.other_backend */
	ends->source.address[0] = mapping->vip[0];
	ends->source.address[1] = mapping->vip[1];
	ends->source.port = ports >> 16;
	ends->source.limits = backend->flags >> BACKEND_MSS_SHIFT ? id + 1 : 0;
	ends->target.address[0] = mapping->client[0];
	ends->target.address[1] = mapping->client[1];
	/* Who sends from port 0, as senders of UDP that want no answer may, is answered there. */
	ends->target.port = (ports & 0xffff) | PORT_GIVEN;
	ends->target.limits = 0;
	/* Nobody has claimed it meanwhile. */
	if ((mapping_word(mapping) ^ word) & (MAPPING_CLAIMS | MAPPING_BUSY))
		return 0;
	touch_mapping(mapping, word, signs, mapping_clock());
	return 1; /* rule: mapping.back */
}

#endif
