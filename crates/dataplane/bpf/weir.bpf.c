// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* weir's kernel plane: packet -> service -> steering method -> backend -> forward. */
#include "abi.h"
#include "maps.h"
#include "outcome.h"
#include "parse.h"
#include "service.h"
#include "sources.h"
#include "caps.h"
#include "methods/registry.h"
#include "icmp.h"
#include "fragment.h"
#include "sctp.h"
#include "echo.h"
#include "quic.h"
#include "forward/beyond.h"
#include "forward/reset.h"
#include "back.h"
#include "path_mtu.h"
#include "follow.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

int weir_apart(struct xdp_md *ctx);

#define PART_APART 0
#define PART_NEXT 1 /* another's, if there is one */

/* Programs that weir_balance goes on in. The kernel empties such a map when only programs hold it, so the
 * control plane pins it (crates/dataplane/src/kernel/program.rs). */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, sizeof(__u32));
	__array(values, int(struct xdp_md *));
} parts SEC(".maps") = {
	.values = { [PART_APART] = (void *)&weir_apart },
};

/* The whole way again, for what the plain one does not do (weir_apart). From weir_balance itself only: in
 * functions of its own, the kernel allows it half as much stack. */
static __always_inline int go_apart(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &parts, PART_APART);
	return leave(REASON_NO_PROGRAM, XDP_DROP); /* rule: apart.no_program */
}

/* What is none of weir's packets is seen by the next program, if there is one, and is the kernel's if not. */
static __always_inline int pass(struct xdp_md *ctx, enum reason reason)
{
	int verdict = COUNT_PASSED(ctx, LOOKED_AT(leave(reason, XDP_PASS)));

	bpf_tail_call(ctx, &parts, PART_NEXT);
	return verdict; /* rule: pass.kernel */
}

/* What could not be parsed belongs to the kernel, unless it is meant for a service: a fragment or
 * a damaged packet for a service has no flow, and the kernel here has no socket for it. */
static __always_inline int reject(struct xdp_md *ctx, const struct packet *p, enum reason reason)
{
	if (p->has_dst && reason != REASON_OTHER_PROTOCOL && is_vip(p->dst[0], p->dst[1]))
		return leave(reason, XDP_DROP); /* rule: reject.drop */
	return pass(ctx, reason); /* rule: reject.pass */
}

/* A packet without a service on its address and port: one takes a prefix, or any port, or it comes from a
 * service. Returns the service, or the reason for which it is the kernel's. */
static __always_inline struct vip *find_unusual(struct xdp_md *ctx, const struct packet *p,
						enum reason *reason)
{
	__u32 unusual = control->unusual;
	__u32 port = p->ports >> 16 | (__u32)p->protocol << 16;
	struct vip *vip = find_unusual_vip(unusual, p->dst[0], p->dst[1], port);

	if (!vip && unusual & UNUSUAL_ANSWERS && p->protocol == PROTOCOL_TCP && !p->quoted &&
	    !p->fragmented) {
		struct flow_key key = {
			.src = { p->dst[0], p->dst[1] },
			.dst = { p->src[0], p->src[1] },
			.ports = p->ports >> 16 | p->ports << 16,
			.protocol = PROTOCOL_TCP,
		};

		*reason = answer(ctx, &key, p->tcp_flags); /* rule: service.answer */
	}
	return vip;
}

/* A packet without a service may be an answer that is translated. Returns a verdict, or NO_ANSWER. */
static __always_inline int find_answer(struct xdp_md *ctx, const struct packet *p)
{
	struct flow_key key = {
		.src = { p->src[0], p->src[1] },
		.dst = { p->dst[0], p->dst[1] },
		.ports = p->ports,
		.protocol = p->protocol,
	};

	int verdict = NO_ANSWER;

	/* To an address and port of the balancer's first: its backend may be another service's under plain NAT, too.
	 * No service of SCTP is translated. */
	if (control->unusual & UNUSUAL_FULL_NAT && p->protocol != PROTOCOL_SCTP) {
		__u32 signs = p->quoted ? SIGN_QUOTED : p->tcp_flags & (SIGN_FIN | SIGN_SYN | SIGN_RST);

		verdict = send_back_full(ctx, &key, p->ip_length, signs | SIGN_BACKEND); /* rule: service.full_nat */
	}
	return verdict == NO_ANSWER ? send_back(ctx, &key, p->ip_length) : verdict;
}

static __always_inline void ask(struct question *q, struct xdp_md *ctx, const struct packet *p,
				const struct table *table, __u32 service, __u32 salt, int apart)
{
	__u32 ports = table->flags & TABLE_CLIENT ? 0 : p->ports ^ salt << 16;

	q->ctx = ctx;
	q->src[0] = p->src[0];
	q->src[1] = p->src[1];
	q->ports = ports;
	q->service = service;
	q->hash = hash_address(&table->key, p->src[0], p->src[1], ports);
	q->reason = REASON_OK;
	q->counts = 0;
	/* Only there are packets of SCTP, of which the flags say as much. */
	int flagged = apart ? p->protocol != PROTOCOL_UDP : p->protocol == PROTOCOL_TCP;

	q->flags = flagged ? p->tcp_flags & (TCP_SPECIAL | TCP_ACK) : TCP_ACK;
	if (apart)
		q->flags |= p->quoted;
}


/* To this backend. */
static __always_inline int deliver(struct xdp_md *ctx, __u32 id, __u32 bytes, __u32 counts)
{
	struct lane *lane = bpf_map_lookup_elem(&lanes, &id);

	NOTE_BACKEND(id);
	if (!lane)
		return leave(REASON_NO_NEXT_HOP, XDP_DROP); /* rule: deliver.no_lane */
	if (unlikely(!lane->resolved || bpf_jiffies64() - lane->resolved > RESOLVE_JIFFIES)) {
		enum reason reason = resolve(ctx, lane, id);

		if (reason == REASON_DEAD_BACKEND) {
			reason = reset_connection(ctx);
			if (reason == REASON_RESET_SENT) {
				report_reset(ctx, id);
				return leave(reason, XDP_TX); /* rule: deliver.reset */
			}
		}
		if (reason != REASON_OK)
			return leave(reason, XDP_DROP); /* rule: deliver.unresolved */
	}
	return forward(ctx, lane, &id, bytes, counts); /* rule: deliver.forward */
}

/* To the backend that made the packet's QUIC id; ASK_APART if it names none, and the service's method is
 * to say. `number`: what stands where a table's number does. Global, so that the verifier goes through it
 * once. */
__noinline int balance_by_id(struct xdp_md *ctx, __u32 number, __u64 lengths, __u32 bytes)
{
	number ^= TABLE_BY_ID;
	if (number >= table_count)
		return leave(REASON_NO_TABLE, XDP_DROP); /* rule: table.none */
	NOTE_SERVICE(number / 2);
	__u32 id = backend_by_id(ctx, number / 2, lengths);

	return id == NO_BACKEND ? ASK_APART : deliver(ctx, id, bytes, 0);
}

/* Whether the plain way has read a datagram that is apart now, and so has asked for its id: not if it has
 * extension headers, or is longer than its first buffer. */
__noinline int was_plain(struct xdp_md *ctx, __u32 bytes)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;

	if (l3 > end)
		return 0;
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK || bytes > (__u64)(end - l3))
		return 0;
	struct ipv6 *ip = l3;

	return type == bpf_htons(ETH_P_IP) ||
	       ((void *)(ip + 1) <= end && ip->next == PROTOCOL_UDP);
}

/* Everything after parsing. Inlined once for each family, so that the family is a constant in it; and once
 * into weir_apart, with all methods. */
static __always_inline int balance(struct xdp_md *ctx, const struct packet *p, int apart)
{
	struct question q;
	__u32 port = p->ports >> 16 | (__u32)p->protocol << 16;
	struct vip *vip = find_vip(p->dst[0], p->dst[1], port);

	NOTE_FLOW(p);
	if (unlikely(!vip)) {
		enum reason reason = REASON_NO_SERVICE;

		if (unlikely(control->unusual)) {
			vip = find_unusual(ctx, p, &reason); /* rule: service.unusual */
			if (!vip && control->unusual & UNUSUAL_NAT && reason == REASON_NO_SERVICE) {
				int verdict = apart ? NOT_PLAIN : send_back_plain(ctx, p->ip_length);

				if (verdict != NOT_PLAIN)
					return verdict;
				if (!apart)
					return go_apart(ctx);
				verdict = find_answer(ctx, p);

				if (p->fragmented)
					note_answer(p, verdict != NO_ANSWER && verdict != XDP_DROP); /* rule: service.first_answer */
				if (verdict != NO_ANSWER)
					return verdict;
			}
		}
		if (!vip) {
			if (apart && p->fragmented && is_vip(p->dst[0], p->dst[1]))
				note_fragment(p, NO_BACKEND);
			return reason == REASON_NO_SERVICE ? pass(ctx, reason) : /* rule: service.none */
							     leave(reason, XDP_PASS);
		}
	}
	if (!is_ours((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return leave(REASON_OTHER_HOST, XDP_DROP); /* rule: host.other */
	__u32 number = *(volatile __u32 *)&vip->table, salt = 0;

	/* A service that does not take all sources or all new flows, or whose packets are led by their ids
	 * first, is here, so that the packets of all others have nothing to ask for it. */
	if (number >= table_count) {
		if (number & TABLE_LISTED && is_denied(number, p->src[0], p->src[1]))
			return leave(REASON_DENIED_SOURCE, XDP_DROP); /* rule: sources.denied */
		/* A new flow is taken where all packets can be decided, so that none is taken twice. */
		if (number & TABLE_CAPPED && (apart ? begins_flow(p) : may_begin_flow(ctx))) {
			if (!apart)
				return go_apart(ctx);
			__u32 told = number & TABLE_SALTED ? salt_of(vip, p->dst[1]) : 0;
			enum reason reason = is_capped(number, p->src[0], p->src[1],
						       p->ports ^ told << 16);

			if (reason != REASON_OK)
				return leave(reason, XDP_DROP); /* rule: caps.dropped */
		}
		number &= ~JUDGED_FLAGS;
		if (number & TABLE_BY_ID &&
		    (!apart || (!p->quoted && !p->fragmented && !was_plain(ctx, p->ip_length)))) {
			int verdict = balance_by_id(ctx, number & ~TABLE_SALTED, vip->id_lengths,
						    p->ip_length);

			if (verdict != ASK_APART)
				return verdict;
			if (!apart)
				return go_apart(ctx);
		}
		number &= ~TABLE_BY_ID;
		/* Here as well, so that the packets of all others have no salt to keep. */
		if (number & TABLE_SALTED) {
			if (!apart)
				return go_apart(ctx);
			salt = salt_of(vip, p->dst[1]); /* rule: service.salted */
			number &= ~TABLE_SALTED;
		}
		if (number >= table_count)
			return leave(REASON_NO_TABLE, XDP_DROP); /* rule: table.none_apart */
	}
	NOTE_SERVICE(number / 2);
	struct table *table = AT(tables, number, table_count);
	ask(&q, ctx, p, table, number / 2, apart ? salt : 0, apart);
	__u32 id = apart ? steer_any(table, p, &q) : steer(table, p, &q);

	if (!apart && id == ASK_APART)
		return go_apart(ctx);
	if (id == NO_BACKEND)
		return leave(q.reason, XDP_DROP); /* rule: steer.none */
	if (apart && p->fragmented)
		note_fragment(p, id);
	return deliver(ctx, id, p->ip_length, q.counts); /* rule: steer.deliver */
}

/* A later fragment of a packet for a service's address. */
static __always_inline int balance_later(struct xdp_md *ctx, const struct packet *p)
{
	__u32 id;

	if (!is_ours((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return leave(REASON_OTHER_HOST, XDP_DROP); /* rule: later.other_host */
	enum reason reason = follow_fragment(p, &id);

	if (reason == REASON_OK)
		return deliver(ctx, id, p->ip_length, 0); /* rule: later.deliver */
	if (reason == REASON_NO_SERVICE)
		return pass(ctx, reason); /* rule: later.pass */
	return leave(reason, XDP_DROP); /* rule: later.drop */
}

/* Whether a later fragment needs no first one: its service takes any port, or is the only one there and says so, and
 * leads clients by their address, so it says all that is asked for, to whichever balancer it comes. It becomes a packet in the middle of its source's
 * flow then. Not where QUIC ids are asked for first. Global, so that the verifier goes through it once. */
__noinline int leads_by_source(struct packet *p)
{
	__u32 backend;

	if (!p)
		return 0;
	/* Another service may have a port of its own at this address: what its first fragment has said goes before. */
	if (follow_fragment(p, &backend) != REASON_LATER_FRAGMENT)
		return 0; /* rule: fragment.by_first */
	/* What read_fragment has left. */
	__u32 protocol = p->tcp_flags, port = 0;
	struct vip *vip = NULL;

	if (protocol == PROTOCOL_UDP || protocol == PROTOCOL_TCP || protocol == PROTOCOL_SCTP) {
		port = port_of_fragments(p->dst[0], p->dst[1], protocol);
		vip = find_vip(p->dst[0], p->dst[1], port | protocol << 16);
		if (!vip)
			vip = find_unusual_vip(control->unusual, p->dst[0], p->dst[1],
					       port | protocol << 16);
	}
	if (!vip)
		return 0; /* rule: fragment.one_port */
	__u32 number = *(volatile __u32 *)&vip->table & ~(JUDGED_FLAGS | TABLE_SALTED);

	if (number >= table_count || !(AT(tables, number, table_count)->flags & TABLE_CLIENT))
		return 0; /* rule: fragment.by_flow */
	p->ports = port << 16;
	p->protocol = protocol;
	p->tcp_flags = TCP_ACK;
	/* Nothing is noted: the others need it as little. */
	p->fragmented = 0;
	return 1; /* rule: fragment.by_source */
}

static __always_inline int is_fragment(enum reason reason)
{
	return reason == REASON_FIRST_FRAGMENT || reason == REASON_LATER_FRAGMENT;
}

static __always_inline int balance_ipv4(struct xdp_md *ctx, void *l3, void *end)
{
	struct packet p = {};

	if (likely(parse_plain_tcp(l3, end, &p)))
		return balance(ctx, &p, 0); /* rule: ipv4.plain */
	struct ipv4 *ip = l3;

	/* A datagram is told with one look. */
	if ((void *)(ip + 1) <= end && ip->protocol != PROTOCOL_UDP &&
	    (ip->protocol == PROTOCOL_ICMP || ip->protocol == PROTOCOL_SCTP))
		return go_apart(ctx);
	enum reason reason = parse_ipv4(l3, end, end - l3, &p);

	if (likely(reason == REASON_OK))
		return balance(ctx, &p, 0); /* rule: ipv4.general */
	if (reason == REASON_BAD_IPV4_LENGTH && has_frags)
		return go_apart(ctx);
	if (is_fragment(reason))
		return go_apart(ctx);
	return reject(ctx, &p, reason); /* rule: ipv4.rejected */
}

static __always_inline int balance_ipv6(struct xdp_md *ctx, void *l3, void *end)
{
	struct packet p = {};
	struct ipv6 *ip = l3;

	/* Extension headers, errors of ICMP, and SCTP are read apart. */
	if ((void *)(ip + 1) <= end && ip->next != PROTOCOL_TCP && ip->next != PROTOCOL_UDP)
		return go_apart(ctx);
	enum reason reason = parse_ipv6(NULL, l3, end, end - l3, &p);

	if (likely(reason == REASON_OK))
		return balance(ctx, &p, 0); /* rule: ipv6.plain */
	if (reason == REASON_BAD_IPV6_LENGTH && has_frags)
		return go_apart(ctx);
	return reject(ctx, &p, reason); /* rule: ipv6.rejected */
}

static __always_inline int balance_frame(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;

	if (l3 > end)
		return pass(ctx, REASON_TRUNCATED_ETHERNET); /* rule: ethernet.truncated */
	__be16 type = eth->type;
	enum reason reason = skip_vlans(&l3, end, &type);

	if (unlikely(reason != REASON_OK))
		return pass(ctx, reason); /* rule: vlan.refused */
	if (type == bpf_htons(ETH_P_IP))
		return balance_ipv4(ctx, l3, end); /* rule: ethernet.ipv4 */
	if (type == bpf_htons(ETH_P_IPV6))
		return balance_ipv6(ctx, l3, end); /* rule: ethernet.ipv6 */
	return pass(ctx, REASON_NOT_IP); /* rule: ethernet.not_ip */
}

SEC("xdp")
int weir_balance(struct xdp_md *ctx)
{
	LOOK_AT(ctx);
	return LOOKED_AT(COUNTED(ctx, balance_frame(ctx)));
}

/* The whole way again, for what the plain one does not do: frames that are longer than their first
 * buffer, methods that are not inlined there, ICMP errors, fragments, SCTP. A program of its own, so that the
 * ways of all others have nothing to keep for it, and both have the verifier's whole patience and the whole
 * stack. */
static __always_inline int balance_apart(struct xdp_md *ctx)
{
	struct packet p = {};
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 bytes = has_frags ? bpf_xdp_get_buff_len(ctx) : end - data;
	struct ethernet *eth = data;
	void *l3 = eth + 1;

	if (l3 > end)
		return pass(ctx, REASON_TRUNCATED_ETHERNET); /* rule: apart.truncated */
	__be16 type = eth->type;
	enum reason reason = skip_vlans(&l3, end, &type);

	if (reason != REASON_OK)
		return pass(ctx, reason); /* rule: apart.vlan */
	__u64 before = l3 - data;

	/* The verifier takes no shorter arithmetic on pointers. */
	asm volatile("" : "+r"(before));
	bytes -= before;
	if (type == bpf_htons(ETH_P_IP))
		reason = parse_ipv4(l3, end, bytes, &p); /* rule: apart.ipv4 */
	else
		reason = parse_ipv6(ctx, l3, end, bytes, &p); /* rule: apart.ipv6 */
	if (reason == REASON_OK)
		goto whole;
	if (reason == REASON_OTHER_PROTOCOL && is_icmp(p.protocol)) {
		int for_vip = is_vip(p.dst[0], p.dst[1]);

		data = (void *)(long)ctx->data;
		end = (void *)(long)ctx->data_end;
		if (for_vip && quoted(ctx, &p)) {
			reason = REASON_OK; /* rule: apart.quoted */
		} else if (is_ours(data, end)) {
			if (for_vip)
				reason = echo(ctx);
			else if (!is_about_translated(ctx, &p) && learn_mtu(ctx, &p))
				reason = REASON_PATH_MTU;
		}
		if (reason == REASON_PATH_MTU)
			return pass(ctx, reason); /* rule: apart.path_mtu */
		if (reason == REASON_ECHO_ANSWERED)
			return leave(reason, XDP_TX); /* rule: apart.echo */
		if (reason == REASON_ECHO_LIMITED)
			return leave(reason, XDP_DROP); /* rule: apart.echo_limited */
	}
	/* About a packet that was sent to a backend with other addresses. */
	if (reason == REASON_OTHER_PROTOCOL && is_icmp(p.protocol) &&
	    control->unusual & UNUSUAL_NAT && !is_vip(p.dst[0], p.dst[1]) && quoted(ctx, &p))
		reason = REASON_OK;
	if (is_fragment(reason)) {
		int for_vip = is_vip(p.dst[0], p.dst[1]), answers = control->unusual & UNUSUAL_NAT;

		if (for_vip || answers)
			reason = read_fragment(ctx, &p);
		if (reason == REASON_LATER_FRAGMENT) {
			if (answers && recall_answer(&p)) {
				int verdict = find_answer(ctx, &p);

				if (verdict != NO_ANSWER)
					return verdict; /* rule: service.later_answer */
			}
			if (for_vip) {
				if (!leads_by_source(&p))
					return balance_later(ctx, &p);
				reason = REASON_OK;
			}
		}
	}
	if (reason != REASON_OK && p.protocol == PROTOCOL_SCTP)
		reason = read_sctp(ctx, &p);
whole:
	return reason == REASON_OK ? balance(ctx, &p, 1) : reject(ctx, &p, reason);
}

SEC("xdp")
int weir_apart(struct xdp_md *ctx)
{
	return LOOKED_AT(COUNTED(ctx, balance_apart(ctx)));
}
