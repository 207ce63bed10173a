/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* SCTP (RFC 9260): ports, and what the first chunk says of the association. The twin of
 * crates/wire/src/parse.rs. Packets of SCTP are decided apart, so that those of TCP and UDP have nothing to
 * ask for it. */
#ifndef WEIR_SCTP_H
#define WEIR_SCTP_H

#include "parse.h"

/* The common header, and the header of the first chunk. No other chunk is looked for: none stands beside an
 * INIT or a SHUTDOWN COMPLETE (section 6.10). */
struct sctp {
	__u32 ports;
	__u32 tag;
	__u32 check;
	__u8 chunk;
	__u8 flags;
	__be16 length;
};

#define SCTP_COMMON 12
#define SCTP_CHUNK 4

/* The flags that a segment of the same meaning would have, so that all that follows knows one kind of start and
 * one kind of end. An association is asked for without a tag (section 8.5.1). */
static __always_inline __u8 meaning(const struct sctp *sctp)
{
	if (sctp->chunk == SCTP_INIT && !sctp->tag)
		return TCP_SYN; /* rule: sctp.init */
	if (sctp->chunk == SCTP_ABORT)
		return TCP_RST | TCP_ACK; /* rule: sctp.abort */
	/* The last chunk that the end sends which was told to shut down, and the one that told it. */
	if (sctp->chunk == SCTP_SHUTDOWN_ACK || sctp->chunk == SCTP_SHUTDOWN_COMPLETE)
		return TCP_FIN | TCP_ACK; /* rule: sctp.shutdown */
	return TCP_ACK; /* rule: sctp.goes_on */
}

/* left: bytes from l4 to the end of the IP packet, where its chunks end if it is no fragment. */
static __always_inline enum reason parse_sctp(void *l4, __u32 left, void *end, struct packet *p)
{
	struct sctp *sctp = l4;

	if (left < sizeof(*sctp) || (void *)(sctp + 1) > end)
		return REASON_TRUNCATED_SCTP; /* rule: sctp.truncated */
	__u32 length = bpf_ntohs(sctp->length);

	if (length < SCTP_CHUNK || (!p->fragmented && length > left - SCTP_COMMON))
		return REASON_BAD_SCTP_CHUNK; /* rule: sctp.chunk */
	p->ports = sctp->ports;
	p->tcp_flags = meaning(sctp);
	return REASON_OK; /* rule: sctp.good */
}

/* Reads the SCTP header of a packet, or of a first fragment, whose IP headers were read. Global, so that the
 * verifier goes through it once, and through what follows as after any other packet that is read so. */
__noinline int read_sctp(struct xdp_md *ctx, struct packet *p)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;

	if (!p || l3 > end)
		return REASON_OTHER_PROTOCOL; /* rule: sctp.no_frame */
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return REASON_OTHER_PROTOCOL; /* rule: sctp.vlan */
	__u64 before = l3 - data;
	__u32 at, length;

	/* The verifier takes no shorter arithmetic on pointers. */
	asm volatile("" : "+r"(before));
	if (type == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = l3;

		if ((void *)(ip + 1) > end)
			return REASON_OTHER_PROTOCOL; /* rule: sctp.no_ipv4 */
		at = (ip->version_ihl & 15) * 4;
		length = bpf_ntohs(ip->total_length); /* rule: sctp.ipv4 */
	} else {
		struct ipv6 *ip = l3;

		if ((void *)(ip + 1) > end)
			return REASON_OTHER_PROTOCOL; /* rule: sctp.no_ipv6 */
		length = sizeof(*ip) + bpf_ntohs(ip->payload_length);
		__u32 skipped = skip_extensions(ctx, before, length, ip->next);

		at = SKIPPED_AT(skipped); /* rule: sctp.ipv6 */
		if (SKIPPED_REASON(skipped) == REASON_FIRST_FRAGMENT)
			at += sizeof(struct extension); /* rule: sctp.fragment6 */
	}
	void *l4 = data + ((before + at) & 0x3fff);

	asm volatile("" : "+r"(l4));
	return parse_sctp(l4, length > at ? length - at : 0, end, p);
}

#endif
