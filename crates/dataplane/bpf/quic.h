/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* From a QUIC packet's destination id to the backend that made it, as draft-ietf-quic-load-balancers-21
 * says. The twin of crates/plane/src/by_id.rs and crates/wire/src/quic.rs. */
#ifndef WEIR_QUIC_H
#define WEIR_QUIC_H

#include "aes.h"
#include "parse.h"
#include "table.h"

#define LONG_HEADER 0x80
#define LONG_ID_AT 6
#define SHORT_ID_AT 1

/* What becomes of an id; the order is that of weir_plane::IdOutcome. */
enum quic_outcome {
	QUIC_REMEMBERED,
	QUIC_DECODED,
	QUIC_NO_ID,
	QUIC_UNCONFIGURED,
	QUIC_TOO_SHORT,
	QUIC_NO_SERVER,
	QUIC_GONE,
};

static __always_inline __u32 quic_count(__u32 outcome, __u32 backend)
{
	__u64 *count = bpf_map_lookup_elem(&quic_outcomes, &outcome);

	if (count)
		++*count;
	return backend;
}

/* Where the UDP header of a packet is that was parsed, from the frame's first byte on; 0: nowhere. Global,
 * as what the verifier knows of it would be looked at in each of its variants. */
__noinline __u32 find_udp(struct xdp_md *ctx)
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
	if (likely(type == bpf_htons(ETH_P_IP))) {
		struct ipv4 *ip = l3;

		if ((void *)(ip + 1) > end)
			return 0;
		return l3 - data + (ip->version_ihl & 15) * 4;
	}
	struct ipv6 *ip = l3;

	if ((void *)(ip + 1) > end)
		return 0;
	__u32 at = sizeof(*ip);

	if (unlikely(ip->next != PROTOCOL_UDP)) {
		__u32 length = sizeof(*ip) + bpf_ntohs(ip->payload_length);
		__u32 skipped = skip_extensions(ctx, l3 - data, length, ip->next);

		if (SKIPPED_REASON(skipped) != REASON_OK)
			return 0;
		at = SKIPPED_AT(skipped); /* rule: quic.extension */
	}
	return l3 - data + at;
}

/* The bits of `length` bytes; less than 8. */
static __always_inline __u64 bytes_of(__u32 length)
{
	return (1ULL << (length & 7) * 8) - 1;
}

/* One pass of the Feistel network: `to` gets what `from` becomes under the key. In a block that is there:
 * there is no room on the stack for another. */
static __always_inline void quic_pass(const struct quic_config *config, const __u64 *from,
				      __u64 *to, const __u64 *bits, __u64 number,
				      struct quic_block *block)
{
	block->words[0] = from[0];
	block->words[1] = from[1] | (__u64)config->block << 48 | number << 56;
	aes_encrypt_half(config, block);
	to[0] ^= block->words[0] & bits[0];
	to[1] ^= block->words[1] & bits[1];
}

/* The right half of a block of up to 19 bytes. Its left end is 2 to 9 bytes away. */
static __always_inline void quic_right(const struct quic_config *config, const __u64 *block,
				       __u64 *right)
{
	__u32 shift = (config->right_at & 7) * 8;

	right[0] = block[0];
	right[1] = block[1];
	__u64 more = block[2];

	if (config->right_at >= 8) { /* rule: quic.right_far */
		right[0] = block[1];
		right[1] = block[2];
		more = 0;
	}
	if (shift) { /* rule: quic.right_shift */
		right[0] = right[0] >> shift | right[1] << (64 - shift);
		right[1] = right[1] >> shift | more << (64 - shift);
	}
	right[0] &= config->right[0];
	right[1] &= config->right[1];
}

/* Leaves the server id of a block in it. Global, as above. */
__noinline int quic_decode(const struct quic_config *config, struct quic_block *block)
{
	if (!config || !block)
		return 0;
	if (config->way == QUIC_SINGLE) {
		aes_decrypt(config, block); /* rule: quic.single */
	} else if (config->way != QUIC_PLAIN) { /* rule: quic.three */
		__u64 left[2] = { block->words[0] & config->left[0],
				  block->words[1] & config->left[1] };
		__u64 right[2];

		quic_right(config, block->words, right);
		quic_pass(config, right, left, config->left, 4, block);
		quic_pass(config, left, right, config->right, 3, block);
		quic_pass(config, right, left, config->left, 2, block);
		if (config->way == QUIC_FOUR) { /* rule: quic.four */
			__u32 shift = (config->right_at & 7) * 8;

			quic_pass(config, left, right, config->right, 1, block);
			if (config->right_at >= 8) {
				left[1] |= right[0] << shift;
			} else {
				left[0] |= right[0] << shift;
				left[1] |= right[1] << shift | right[0] >> (64 - shift);
			}
		}
		block->words[0] = left[0];
		block->words[1] = left[1];
	}
	block->words[0] &= config->server[0];
	block->words[1] &= config->server[1];
	return 0;
}

/* The backend that a server id leads to. */
static __always_inline __u32 quic_backend(__u32 config, const __u64 *id)
{
	struct quic_server server = { .id = { id[0], id[1] }, .config = config };
	__u32 *backend = bpf_map_lookup_elem(&quic_servers, &server);

	return backend ? *backend : NO_BACKEND;
}

/* The backend whose server made the packet's destination id, or NO_BACKEND. Global, so that the verifier
 * goes through it once. */
__noinline __u32 backend_by_id(struct xdp_md *ctx, __u32 service, __u64 lengths)
{
	__u32 in_frame = find_udp(ctx) & 0x3fff;
	void *end = (void *)(long)ctx->data_end;
	struct udp *udp = (void *)(long)ctx->data + in_frame;
	/* Before anything that it stands for is read. */
	__u32 generation = *(volatile __u64 *)&control->quic_generation;

	if (!in_frame || (void *)(udp + 1) + LONG_ID_AT > end)
		return quic_count(QUIC_NO_ID, NO_BACKEND); /* rule: quic.no_payload */
	__u8 *payload = (void *)(udp + 1);
	__u32 size = bpf_ntohs(udp->length) - sizeof(*udp);
	int is_long = payload[0] & LONG_HEADER;
	__u32 at = is_long ? LONG_ID_AT : SHORT_ID_AT;
	__u32 length = is_long ? payload[LONG_ID_AT - 1] : QUIC_ID;
	__u8 *id = payload + at;

	if (size < at + QUIC_FROM_ID || (void *)id + QUIC_FROM_ID > end || length > QUIC_ID)
		return quic_count(QUIC_NO_ID, NO_BACKEND); /* rule: quic.no_id */
	if (!length)
		return quic_count(QUIC_TOO_SHORT, NO_BACKEND); /* rule: quic.empty */
	__u32 number = id[0] >> QUIC_CONFIG_SHIFT;
	__u32 needed = lengths >> number * 8 & 0xff;

	if (!needed)
		return quic_count(QUIC_UNCONFIGURED, NO_BACKEND); /* rule: quic.unconfigured */
	if (length < needed)
		return quic_count(QUIC_TOO_SHORT, NO_BACKEND); /* rule: quic.too_short */
	__u64 words[2] = { *(__u64 *)id, *(__u64 *)(id + 8) };
	__u32 rest = *(__u32 *)(id + 16);

	/* Six bytes are the fewest. */
	if (needed < 8) {
		words[0] &= bytes_of(needed);
		words[1] = 0;
		rest = 0;
	} else if (needed < 16) {
		words[1] &= bytes_of(needed - 8);
		rest = 0;
	} else {
		rest &= bytes_of(needed - 16);
	}
	__u64 mixed = (words[0] ^ words[1] * VIP_HIGH ^ rest ^ service) * VIP_FIRST;
	__u32 slot = (mixed ^ mixed >> 32) * VIP_SECOND >> 32 & (known_ids - 1);
	struct quic_known *known = bpf_map_lookup_elem(&quic_known, &slot);

	if (!known)
		return NO_BACKEND;
	__u32 backend = known->backend;

	if (likely(known->id[0] == words[0] && known->id[1] == words[1] && known->rest == rest &&
		   known->service == service + 1 && known->generation == generation)) {
		if (!(AT(backends, backend, backend_count)->flags & BACKEND_PRESENT))
			return quic_count(QUIC_GONE, NO_BACKEND); /* rule: quic.gone */
		return quic_count(QUIC_REMEMBERED, backend); /* rule: quic.remembered */
	}
	__u32 key = service * QUIC_CONFIGS + number;
	struct quic_config *config = bpf_map_lookup_elem(&quic_configs, &key);

	if (!config)
		return quic_count(QUIC_UNCONFIGURED, NO_BACKEND); /* rule: quic.no_config */
	if ((id[0] & QUIC_LENGTH) < config->least)
		return quic_count(QUIC_TOO_SHORT, NO_BACKEND); /* rule: quic.says_less */
	struct quic_block block = {
		{ *(__u64 *)(id + 1), *(__u64 *)(id + 9), *(__u64 *)(id + 17) },
	};

	quic_decode(config, &block);
	backend = quic_backend(key, block.words);
	if (backend == NO_BACKEND)
		return quic_count(QUIC_NO_SERVER, NO_BACKEND); /* rule: quic.no_server */
	known->service = 0;
	known->id[0] = words[0];
	known->id[1] = words[1];
	known->rest = rest;
	known->generation = generation;
	known->backend = backend;
	known->service = service + 1;
	if (!(AT(backends, backend, backend_count)->flags & BACKEND_PRESENT))
		return quic_count(QUIC_GONE, NO_BACKEND); /* rule: quic.gone_decoded */
	return quic_count(QUIC_DECODED, backend); /* rule: quic.decoded */
}

#endif
