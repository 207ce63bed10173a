/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Bounds: for each method a program that does what nobody can do without, and nothing else. It tells
 * that a frame is a segment of an established flow of the one service that there is, hashes the flow,
 * makes the method's reads at random places of as many bytes as its tables have, and gives the frame
 * the addresses that they lead to. No counters, no next hops that age, no other kind of packet. */
#ifndef WEIR_BOUNDS_H
#define WEIR_BOUNDS_H

/* Random bytes, in the place of every table. */
RESIZED(__u8, random_bytes);

/* Sizes, set before loading; the verifier folds them into the programs. */
const volatile __u32 random_count = 1; /* bytes that there are */
const volatile __u32 half_of_cells = 1; /* bytes of one of concury's arrays */
const volatile __u32 residue_rows = 1;
const volatile __u32 jet_rows = 1;
const volatile __u32 jet_asks = 1; /* of 256 rows, those that ask the connection table */
const volatile __u32 jet_entries = 1;
const volatile __u32 tracked_entries = 1;
const volatile struct hash_key bound_key = {};

struct bound_backend {
	__u64 first; /* of both addresses, as they stand in a frame */
	__u32 rest;
	__u32 reserved;
};

struct bound_backend bound_backends[BOUND_BACKENDS] = {};

static __always_inline __u8 *at_random(__u64 at)
{
	return AT(random_bytes, at, random_count - 7);
}

static __always_inline __u16 random_row(__u64 first, __u32 row)
{
	return *(__u16 *)at_random(first + row * 2);
}

static __always_inline struct tcp *established(struct xdp_md *ctx, __u64 *hash)
{
	struct ethernet *eth = (void *)(long)ctx->data;
	struct ipv4 *ip = (void *)(eth + 1);
	struct tcp *tcp = (void *)(ip + 1);
	struct hash_key *key = (struct hash_key *)&bound_key;

	if ((void *)(tcp + 1) > (void *)(long)ctx->data_end || eth->type != bpf_htons(ETH_P_IP) ||
	    ip->version_ihl != 0x45 || ip->protocol != PROTOCOL_TCP ||
	    ip->fragment & bpf_htons(0x3fff) || ip->dst != settings.vip ||
	    tcp->ports >> 16 != settings.vip_port || tcp->flags & (TCP_SYN | TCP_FIN | TCP_RST))
		return NULL;
	*hash = mix(key, ((__u64)ip->src << 32 | tcp->ports) ^ key->xor);
	return tcp;
}

static __always_inline int bound_send(struct xdp_md *ctx, __u32 id)
{
	void *data = (void *)(long)ctx->data;
	struct bound_backend *backend = &bound_backends[id & (BOUND_BACKENDS - 1)];

	if (data + sizeof(struct ethernet) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	*(__u64 *)data = backend->first;
	*(__u32 *)(data + 8) = backend->rest;
	return XDP_TX;
}

/* Two cells that do not wait for each other, and the slot that they lead to. */
SEC("xdp")
int bound_concury(struct xdp_md *ctx)
{
	__u64 hash;

	if (!established(ctx, &hash))
		return XDP_DROP;
	__u32 a = *(__u32 *)at_random(scale(hash, half_of_cells));
	__u32 b = *(__u32 *)at_random((__u64)half_of_cells + scale(hash >> 32, half_of_cells));

	return bound_send(ctx, random_row(half_of_cells * 2ULL, (a ^ b) & (BOUND_SLOTS - 1)));
}

/* A row. */
SEC("xdp")
int bound_residue(struct xdp_md *ctx)
{
	__u64 hash;

	if (!established(ctx, &hash))
		return XDP_DROP;
	return bound_send(ctx, random_row(0, scale(hash, residue_rows)));
}

/* A row, and of some rows an entry of the connection table. */
SEC("xdp")
int bound_jet(struct xdp_md *ctx)
{
	__u64 hash;

	if (!established(ctx, &hash))
		return XDP_DROP;
	__u32 id = random_row(0, scale(hash, jet_rows));

	if (id >> 8 < jet_asks)
		id = *(__u32 *)at_random((__u64)scale(hash >> 32, jet_entries) * BOUND_ENTRY);
	return bound_send(ctx, id);
}

/* An entry of the connection table, which has a line of its own and no chain. */
SEC("xdp")
int bound_tracked(struct xdp_md *ctx)
{
	__u64 hash;

	if (!established(ctx, &hash))
		return XDP_DROP;
	return bound_send(
		ctx, *(__u32 *)at_random((__u64)scale(hash, tracked_entries) * BOUND_ENTRY));
}

/* The same of a segment with the timestamps in their usual place, which it returns. */
static __always_inline struct stamps *established_with_stamps(struct xdp_md *ctx, __u64 *hash)
{
	struct tcp *tcp = established(ctx, hash);

	if (!tcp)
		return NULL;
	struct stamps *stamps = (void *)(tcp + 1);

	if ((void *)(stamps + 1) > (void *)(long)ctx->data_end ||
	    stamps->kind != bpf_htonl(0x0101080a))
		return NULL;
	return stamps;
}

/* The timestamps in their usual place, and the connection that the echo names, of four to a line. */
SEC("xdp")
int bound_cheetah_stateful(struct xdp_md *ctx)
{
	__u64 hash;
	struct stamps *stamps = established_with_stamps(ctx, &hash);

	if (!stamps)
		return XDP_DROP;
	__u32 index = scale(hash + bpf_ntohl(stamps->echo), tracked_entries);

	return bound_send(ctx, *(__u32 *)at_random((__u64)index * (BOUND_ENTRY / 4)));
}

/* The timestamps in their usual place, and the slot of the number that the echo hides. */
SEC("xdp")
int bound_cheetah(struct xdp_md *ctx)
{
	__u64 hash;
	struct stamps *stamps = established_with_stamps(ctx, &hash);

	if (!stamps)
		return XDP_DROP;
	__u32 number = (bpf_ntohl(stamps->echo) >> 16 ^ hash >> PAD_SHIFT) & COOKIE_NUMBERS;

	return bound_send(ctx, random_row(0, number));
}

#endif
