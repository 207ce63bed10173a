/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* What the program sends itself: ICMP messages, in the place of the packets that they answer. */
#ifndef WEIR_MESSAGES_H
#define WEIR_MESSAGES_H

#include "maps.h"
#include "parse.h"

/* IP precedence, of what keeps networks going (RFC 1812 section 4.3.2.5). */
#define INTERNETWORK_CONTROL 0xc0
/* Words of the longest message that is summed up. */
#define MESSAGE_WORDS 320
#define NO_SUM (~0ULL)

/* Whether a packet came from a single host, and another one. */
static __always_inline int is_host_ipv4(const struct ipv4 *ip)
{
	__u8 first = ip->src;

	return ip->src != ip->dst && first != 0 && first != 127 && first < 224;
}

static __always_inline int is_host_ipv6(const struct ipv6 *ip)
{
	return ip->src[0] != 0 && (__u8)ip->src[0] != 0xff &&
	       (ip->src[0] != ip->dst[0] || ip->src[1] != ip->dst[1]);
}

/* So many per second are sent by each processor as the setting says, and MESSAGE_BURST of them at once. */
static __always_inline int may_send(__u32 kind)
{
	__u64 interval = control->intervals[kind];
	struct bucket *bucket = bpf_map_lookup_elem(&buckets, &kind);

	if (!interval || !bucket)
		return 0; /* rule: message.off */
	__u64 now = bpf_ktime_get_ns();
	__u64 gained = (now - bucket->filled) / interval;

	if (gained >= MESSAGE_BURST - bucket->tokens) { /* rule: message.filled */
		bucket->tokens = MESSAGE_BURST;
		bucket->filled = now;
	} else { /* rule: message.gained */
		bucket->tokens += gained;
		bucket->filled += gained * interval;
	}
	if (!bucket->tokens)
		return 0; /* rule: message.limited */
	bucket->tokens--;
	return 1; /* rule: message.allowed */
}

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return sum;
}

static __always_inline __u64 sum_of_ipv4(const struct ipv4 *ip)
{
	const __u32 *words = (const __u32 *)ip;

	return (__u64)words[0] + words[1] + words[2] + words[3] + words[4];
}

/* The pseudo-header of RFC 8200 section 8.1, of ICMP. */
static __always_inline __u64 sum_of_ends(const struct ipv6 *ip)
{
	const __u32 *words = (const __u32 *)ip->src;
	__u64 sum = (__u64)bpf_htonl(bpf_ntohs(ip->payload_length)) + bpf_htonl(ip->next);

#pragma unroll
	for (int i = 0; i < 8; i++)
		sum += words[i];
	return sum;
}

/* Leaves so many bytes of the frame. */
static __always_inline int cut(struct xdp_md *ctx, __u32 bytes)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 now = has_frags ? bpf_xdp_get_buff_len(ctx) : end - data;

	return now == bytes || bpf_xdp_adjust_tail(ctx, (int)(bytes - now)) == 0; /* rule: message.cut */
}

/* Makes room for so many bytes between what stands before the packet and the packet, and swaps the MAC
 * addresses; tags stay. */
static __always_inline int turn_round(struct xdp_md *ctx, __u32 before, const __u32 more)
{
	if (bpf_xdp_adjust_head(ctx, -(int)more))
		return 0; /* rule: message.no_headroom */
	__u16 *to = (void *)(long)ctx->data;
	__u16 *from = (void *)to + more;

	/* The longest is two tags. */
	if ((void *)(from + 11) > (void *)(long)ctx->data_end)
		return 0; /* rule: message.short */
#pragma unroll
	for (int i = 0; i < 3; i++) {
		to[i] = from[i + 3];
		to[i + 3] = from[i];
	}
#pragma unroll
	for (int i = 6; i < 11; i++)
		to[i] = from[i];
	return 1; /* rule: message.turned */
}

/* The sum of so many words of four bytes, from there on in the frame. Global, so that the verifier goes
 * through it once. */
__noinline __u64 sum_words(struct xdp_md *ctx, __u32 at, __u32 words)
{
	void *data = (void *)(long)ctx->data + (at & 0xff);
	void *end = (void *)(long)ctx->data_end;
	__u64 sum = 0;

	for (__u32 i = 0; i < MESSAGE_WORDS; i++) {
		__u32 *word = data + i * 4;

		if (i >= words)
			return sum; /* rule: message.summed */
		if ((void *)(word + 1) > end)
			return NO_SUM; /* rule: message.sum_truncated */
		sum += *word;
	}
	return NO_SUM; /* rule: message.sum_too_long */
}

/* Writes the checksum of the message that stands there; sum: of what else it is over. */
static __always_inline int finish_message(struct xdp_md *ctx, __u64 at, __u64 sum, __u32 bytes)
{
	__u64 found = sum_words(ctx, at, bytes / 4);

	if (found == NO_SUM)
		return 0; /* rule: message.no_sum */
	void *data = (void *)(long)ctx->data;
	void *message = data + (at & 0xff);

	/* One pointer, of which the verifier knows how much is behind it. */
	asm volatile("" : "+r"(message));
	if (message + 4 > (void *)(long)ctx->data_end)
		return 0; /* rule: message.no_room */
	*(__u16 *)(message + 2) = ~fold(found + sum);
	return 1; /* rule: message.finished */
}

#endif
