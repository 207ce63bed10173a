/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* The TCP timestamp option (RFC 7323 section 3). The twin of crates/wire/src/tcp_options.rs: the same
 * layouts, the same refusals.
 *
 * A function of its own that reads the frame anew, so that the packets of methods which do not care
 * have nothing to keep for it. */
#ifndef WEIR_TCP_OPTIONS_H
#define WEIR_TCP_OPTIONS_H

#include "parse.h"

#define MAX_OPTION_BYTES 40
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_TIMESTAMPS 8

struct timestamps {
	__u8 kind;
	__u8 length;
	__be32 value;
	__be32 echo;
} __attribute__((packed));

/* NOP, NOP, timestamps; SACK permitted, timestamps; MSS and NOP, window scale before them. */
#define NOP_NOP_TS bpf_htonl(0x0101080a)
#define SACK_TS bpf_htonl(0x0402080a)
#define MSS bpf_htonl(0x02040000)
#define MSS_KEPT bpf_htonl(0xffff0000)
#define NOP_SCALE bpf_htonl(0x01030300)
#define NOP_SCALE_KEPT bpf_htonl(0xffffff00)

/* By the layouts that nearly all packets have: bytes of options before the timestamps, 0 if there is
 * none of them. `left`: bytes of options. */
static __always_inline __u32 find_by_layout(const void *options, __u32 left, const void *end)
{
	const __be32 *words = options;

	if (left < 12 || options + 12 > end)
		return 0;
	if (likely(words[0] == NOP_NOP_TS))
		return 2; /* rule: stamps.nop */
	if (left < 16 || options + 16 > end || (words[0] & MSS_KEPT) != MSS)
		return 0;
	if (words[1] == SACK_TS || words[1] == NOP_NOP_TS)
		return 6; /* rule: stamps.mss */
	if (left < 20 || options + 20 > end || (words[1] & NOP_SCALE_KEPT) != NOP_SCALE)
		return 0;
	return words[2] == SACK_TS || words[2] == NOP_NOP_TS ? 10 : 0; /* rule: stamps.scale */
}

/* The functions below are global ones: the verifier looks at each once, and knows nothing of what it
 * returns, so that a loop of them costs it one turn. */

#define OPTION_FOUND (1 << 16)
#define OPTION_NONE (1 << 17)

/* The option at an offset of the frame, where options go on up to another: the offset of the next one;
 * OPTION_FOUND if these are the timestamps; OPTION_NONE if there are no more, or if it is left open
 * where they are. */
__noinline __u32 next_option(WEIR_CONTEXT *ctx, __u32 at, __u32 until)
{
	void *end = (void *)(long)ctx->data_end;
	__u32 offset = at & 0x3fff;
	__u8 *option = (void *)(long)ctx->data + offset;

	if (at >= until || (void *)(option + 1) > end || option[0] == OPTION_END)
		return OPTION_NONE;
	if (option[0] == OPTION_NOP)
		return at + 1; /* rule: stamps.walk_nop */
	if (at + 2 > until || (void *)(option + 2) > end)
		return OPTION_NONE;
	__u32 length = option[1];

	if (length < 2 || at + length > until)
		return OPTION_NONE;
	if (option[0] != OPTION_TIMESTAMPS)
		return at + length; /* rule: stamps.walk */
	return length == sizeof(struct timestamps) ? OPTION_FOUND : OPTION_NONE;
}

/* Of a TCP header: TSecr as the host counts, the option's offset in the frame << 32, and that of the TCP
 * header << 48; 0 if it has no timestamps. */
static __always_inline __u64 timestamps_of(WEIR_CONTEXT *ctx, const struct tcp *tcp)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	const void *options = tcp + 1;

	if (options > end)
		return 0;
	__u32 header = (tcp->offset >> 4) * 4;

	if (header < sizeof(*tcp))
		return 0;
	__u64 l4 = (void *)tcp - data;
	__u32 at = l4 + sizeof(*tcp);
	__u32 until = l4 + header;
	__u32 before = find_by_layout(options, header - sizeof(*tcp), end);

	if (likely(before)) {
		at += before;
	} else {
		__u32 next = at;

		for (int i = 0; i <= MAX_OPTION_BYTES && next < OPTION_FOUND; i++) {
			at = next;
			next = next_option(ctx, at, until);
		}
		if (next != OPTION_FOUND)
			return 0;
	}
	struct timestamps *found = data + (at & 0x3fff);

	if ((void *)(found + 1) > end)
		return 0;
	return (__u64)at << 32 | l4 << 48 | bpf_ntohl(found->echo);
}

/* Of a TCP packet that was parsed. */
__noinline __u64 find_timestamps(WEIR_CONTEXT *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;

	if (l3 > end)
		return 0;
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return 0;
	struct tcp *tcp;

	if (likely(type == bpf_htons(ETH_P_IP))) {
		struct ipv4 *ip = l3;

		if ((void *)(ip + 1) > end)
			return 0;
		tcp = l3 + (ip->version_ihl & 15) * 4;
	} else {
		struct ipv6 *ip = l3;

		if ((void *)(ip + 1) > end)
			return 0;
		__u32 at = sizeof(*ip);

		if (unlikely(ip->next != PROTOCOL_TCP)) {
			__u32 length = sizeof(*ip) + bpf_ntohs(ip->payload_length);
			__u32 skipped = skip_extensions(ctx, l3 - data, length, ip->next);

			at = SKIPPED_AT(skipped); /* rule: stamps.extension */
			/* What follows the header of a first fragment. */
			if (SKIPPED_REASON(skipped) == REASON_FIRST_FRAGMENT)
				at += sizeof(struct extension);
			else if (SKIPPED_REASON(skipped) != REASON_OK)
				return 0;
		}
		tcp = l3 + at;
	}
	return timestamps_of(ctx, tcp);
}

#endif
