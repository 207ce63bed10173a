/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* What a steering method is asked. The contract of every method:
 *
 *     u32 steer_X(const struct table *, const struct packet *, struct question *)
 *
 * It answers with a backend; or with NO_BACKEND, and then `reason` says why the packet is dropped. It
 * reads the table and nothing that it did not ask for; what it remembers or reports it does itself,
 * through the maps. Its twin in Rust decides the same packets alike, bit for bit. */
#ifndef WEIR_QUESTION_H
#define WEIR_QUESTION_H

#include "parse.h"
#include "report.h"

/* Plain words, so that the compiler keeps them in registers: the key of a state is put together only
 * where a map is asked. */
struct question {
	struct xdp_md *ctx; /* the frame, for methods that read more of it */
	__u64 src[2];
	__u32 ports; /* 0 with affinity by client */
	__u32 service;
	__u64 hash;
	__u8 flags;  /* SYN, ACK, FIN, RST of a TCP segment; a datagram counts as ACK; QUOTED */
	__u8 reason; /* out: enum reason, if there is no backend */
	__u8 counts; /* out: the flow is new at its backend */
};

/* No backend: the question is to be put again, where all methods are (weir_apart). */
#define ASK_APART 0x10000

/* Neither of these is set in nearly every packet, which one comparison tells. */
#define TCP_SPECIAL (TCP_SYN | TCP_FIN | TCP_RST)

/* Among the flags: an ICMP error quotes a packet that the flow's backend has sent. It goes to that backend,
 * as a packet in the middle of the flow would, and begins nothing. */
#define QUOTED 0x20

static __always_inline int starts(const struct question *q)
{
	return q->flags == TCP_SYN;
}

static __always_inline int ends(const struct question *q)
{
	return q->flags & (TCP_FIN | TCP_RST);
}

/* For methods that want to know where flows start: UDP has no SYN, so the first datagram of a flow
 * that was not seen recently counts as one from here on. */
static __always_inline void tell_first_datagram(const struct packet *p, struct question *q)
{
	if (p->protocol == PROTOCOL_UDP && !(q->flags & QUOTED) &&
	    !seen_before(q->hash, q->service))
		q->flags = TCP_SYN; /* rule: udp.first */
}

/* The same for methods that are not inlined. Global, so that the verifier goes through it once. */
__noinline int seen_before_apart(__u64 hash, __u32 service)
{
	return seen_before(hash, service);
}

static __always_inline void tell_first_datagram_apart(const struct packet *p, struct question *q)
{
	if (p->protocol == PROTOCOL_UDP && !(q->flags & QUOTED) &&
	    !seen_before_apart(q->hash, q->service))
		q->flags = TCP_SYN; /* rule: udp.first_apart */
}

static __always_inline void state_of(const struct question *q, struct service_state *state)
{
	state->service = q->service;
	__builtin_memcpy(state->key.address, q->src, 16);
	state->key.src_port = q->ports;
	state->key.dst_port = q->ports >> 16;
}

/* The end of a decision of methods whose states the control plane keeps: notes where the flow's next
 * packets go, if the table does not lead them there, and reports starts and ends. */
static __always_inline __u32 conclude(struct question *q, const struct service_state *state,
				      __u32 backend, int note)
{
	if (backend == NO_BACKEND) {
		q->reason = REASON_NO_BACKEND; /* rule: conclude.no_backend */
		return backend;
	}
	if (note && note_pending(state, &backend)) {
		/* Forwarding it unrecorded could break it at the next change; its sender repeats
		 * a SYN that was dropped. */
		q->reason = REASON_PENDING_FULL; /* rule: pending.full */
		return NO_BACKEND;
	}
	if (starts(q) || ends(q))
		notice(q->hash);
	if (starts(q))
		report(state, backend, EVENT_START); /* rule: conclude.start */
	if (ends(q))
		report(state, backend, EVENT_END); /* rule: conclude.end */
	return backend;
}

#endif
