/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Fragments of packets for a service. The first one has the ports, so it is decided like a whole packet; the
 * others have an identification, and go where the first one went. The twin of crates/wire/src/fragment.rs
 * and crates/plane/src/pipeline.rs. */
#ifndef WEIR_FRAGMENT_H
#define WEIR_FRAGMENT_H

#include "icmp.h"

/* Instead of a backend: it is one's answer, and has gone to its client. */
#define ANSWERED (NO_BACKEND + 1)

/* A first fragment that says where its packet goes becomes a packet that can be decided. Returns
 * REASON_LATER_FRAGMENT for one of the others, with the protocol in the place of the flags, and for what has no
 * ports why not. The header of a fragment
 * stands last in IPv6: RFC 7112 wants all headers in the first fragment, but nobody sends more of them.
 * Global, so that the verifier goes through it once. */
__noinline int read_fragment(struct xdp_md *ctx, struct packet *p)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;

	if (!p || l3 > end)
		return REASON_FIRST_FRAGMENT; /* rule: fragment.truncated */
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return REASON_FIRST_FRAGMENT; /* rule: fragment.vlan */
	__u32 at, length, later;
	__u8 next;

	if (type == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = l3;

		if ((void *)(ip + 1) > end)
			return REASON_FIRST_FRAGMENT; /* rule: fragment.truncated4 */
		at = (ip->version_ihl & 15) * 4;
		length = bpf_ntohs(ip->total_length);
		later = ip->fragment & bpf_htons(0x1fff);
		next = ip->protocol;
		p->fragment = ip->id;
		p->fragmented = next; /* rule: fragment.ipv4 */
	} else {
		struct ipv6 *ip = l3;

		if ((void *)(ip + 1) > end)
			return REASON_FIRST_FRAGMENT; /* rule: fragment.truncated6 */
		length = sizeof(*ip) + bpf_ntohs(ip->payload_length);
		__u32 skipped = skip_extensions(ctx, l3 - data, length, ip->next);

		at = SKIPPED_AT(skipped);
		struct extension *ext = l3 + at;

		if ((void *)(ext + 1) > end)
			return REASON_FIRST_FRAGMENT; /* rule: fragment.truncated_header */
		later = ext->fragment & bpf_htons(0xfff8);
		next = ext->next;
		p->fragment = ext->rest;
		p->fragmented = PROTOCOL_FRAGMENT; /* rule: fragment.ipv6 */
		at += sizeof(*ext);
	}
	p->tcp_flags = next;
	if (later)
		return REASON_LATER_FRAGMENT; /* rule: fragment.later */
	struct packet inner = { .protocol = next };
	__u32 left = length > at ? length - at : 0;
	void *l4 = l3 + (at & 0x3fff);

	if (next == PROTOCOL_TCP) { /* rule: fragment.tcp */
		enum reason reason = parse_l4(l4, left, end, &inner);

		if (reason != REASON_OK)
			return reason; /* rule: fragment.bad_tcp */
	} else if (next == PROTOCOL_UDP) {
		/* Its length is that of the whole datagram. */
		struct udp *udp = l4;

		if (left < sizeof(*udp) || (void *)(udp + 1) > end)
			return REASON_TRUNCATED_UDP; /* rule: fragment.truncated_udp */
		if (bpf_ntohs(udp->length) < sizeof(*udp))
			return REASON_BAD_UDP_LENGTH; /* rule: fragment.udp_length */
		inner.ports = udp->ports; /* rule: fragment.udp */
	} else {
		/* It may be one that is read elsewhere (sctp.h). */
		p->protocol = next;
		return REASON_FIRST_FRAGMENT; /* rule: fragment.other */
	}
	p->ports = inner.ports;
	p->tcp_flags = inner.tcp_flags;
	p->protocol = next;
	return REASON_OK; /* rule: fragment.read */
}

/* Which packet it is of (RFC 791; RFC 8200 section 4.5). */
static __always_inline struct fragment_key fragment_key(const struct packet *p)
{
	return (struct fragment_key){
		.src = { p->src[0], p->src[1] },
		.dst = { p->dst[0], p->dst[1] },
		.id = p->fragment,
		.protocol = p->fragmented,
	};
}

/* Seconds by a clock that goes on while there is no control plane. */
static __always_inline __u32 fragment_clock(void)
{
	return bpf_ktime_get_ns() / 1000000000;
}

static __always_inline int is_old(const struct fragment *went)
{
	return fragment_clock() - went->clock > FRAGMENT_SECONDS;
}

/* Where the first fragment of a packet went; NO_BACKEND: to the kernel. */
static __always_inline void note_fragment(const struct packet *p, __u32 backend)
{
	struct fragment_key key = fragment_key(p);
	struct fragment went = { .backend = backend, .clock = fragment_clock() };

	if (backend != NO_BACKEND)
		went.incarnation = AT(backends, backend, backend_count)->incarnation; /* rule: fragment.noted */
	bpf_map_update_elem(&fragments, &key, &went, BPF_ANY);
}

/* Of the first fragment of a packet for no service: whose answer it is, if it was translated; else what was known
 * of an earlier packet with the same identification is none of this one's. Global, as there is no stack left where
 * it is asked for. */
__noinline int note_answer(const struct packet *p, int translated)
{
	if (!p)
		return 0;
	struct fragment_key key = fragment_key(p);

	if (!translated)
		return bpf_map_delete_elem(&fragments, &key); /* rule: fragment.answer_forgotten */
	struct fragment went = {
		.backend = ANSWERED,
		.incarnation = p->ports,
		.origin = p->protocol,
		.clock = fragment_clock(),
	};

	return bpf_map_update_elem(&fragments, &key, &went, BPF_ANY); /* rule: fragment.answer_noted */
}

/* Whether a later fragment is of a backend's packet whose first one was translated: then it has that one's ports
 * and protocol from here on. Nothing more is to be noted of its connection, as of one that an error quotes.
 * Global, as note_answer. */
__noinline int recall_answer(struct packet *p)
{
	if (!p)
		return 0;
	struct fragment_key key = fragment_key(p);
	struct fragment *went = bpf_map_lookup_elem(&fragments, &key);

	if (!went || went->backend != ANSWERED || is_old(went))
		return 0; /* rule: fragment.no_answer */
	p->ports = went->incarnation;
	p->protocol = went->origin;
	p->quoted = QUOTED;
	return 1; /* rule: fragment.answer */
}

/* Where the other fragments go. Returns REASON_OK with the backend, or REASON_NO_SERVICE if they are the
 * kernel's; REASON_LATER_FRAGMENT if the first one was not here, or its backend is gone. */
static __always_inline enum reason follow_fragment(const struct packet *p, __u32 *backend)
{
	struct fragment_key key = fragment_key(p);
	struct fragment *went = bpf_map_lookup_elem(&fragments, &key);

	/* What was translated when nothing is any more goes nowhere. */
	if (!went || is_old(went) || went->backend == ANSWERED)
		return REASON_LATER_FRAGMENT; /* rule: fragment.lost */
	*backend = went->backend;
	if (*backend == NO_BACKEND)
		return REASON_NO_SERVICE; /* rule: fragment.kernels */
	struct backend *entry = AT(backends, *backend, backend_count);

	if (!(entry->flags & BACKEND_PRESENT) || entry->incarnation != went->incarnation)
		return REASON_LATER_FRAGMENT; /* rule: fragment.gone */
	return REASON_OK; /* rule: fragment.followed */
}

#endif
