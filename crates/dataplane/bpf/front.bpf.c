// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* In front of weir_balance, where a plane in user space takes part (docs/planes.md): segments in the
 * middle of connections go to its AF_XDP socket, all else goes on in weir_balance, as does everything
 * while there is no socket. It decides nothing, and counts nothing. */
/* It needs a little of what these have. */
#pragma clang diagnostic ignored "-Wunused-function"
#include "abi.h"
#include "maps.h"
#include "parse.h"
#include "service.h"
#include "sources.h"
#include "ours.h"
#include "methods/registry.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Queues that have a socket; made as large as that. */
#define QUEUES 256
/* A socket's chunks have room for so much. */
#define FRONT_BYTES 1792
/* One for each number that a backend can have. */
#define FRONT_LANES 32768
#define FRONT_COUNTERS 32

#pragma clang diagnostic push
#pragma clang diagnostic error "-Wpadded"

/* What the control plane and the plane in user space tell each other. */
struct front {
	__u32 memory;  /* which memory is in use; odd while that changes */
	__u32 ready;   /* the one that the plane in user space reads; 0: none */
	__u64 turn;    /* odd while it is at a burst; each burst adds two */
	__u64 process; /* its number */
	__u64 started; /* when it began */
	__u64 reserved[4];
	__u64 counters[FRONT_COUNTERS]; /* what it counts; crates/dataplane/src/user.rs has their names */
};

/* What it has forwarded, by the backend's number. */
struct front_lane {
	__u64 packets;
	__u64 bytes;
};

#pragma clang diagnostic pop

struct front front[1] SEC(".data.front");
struct front_lane front_lanes[FRONT_LANES] SEC(".data.front_lanes");

/* Where in `sockets` that of a receive queue stands: interface << 32 | queue. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, QUEUES);
	__type(key, __u64);
	__type(value, __u32);
} queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Who decides all other packets. Pinned, as the kernel empties it when only programs hold it. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} behind SEC(".maps");

/* Whether the plane in user space decides packets of this service: they read the table, and it is not
 * being changed. */
static __always_inline int reads_table_only(const struct table *table, const struct packet *p)
{
	if (table->flags & TABLE_PENDING)
		return 0;
	if (table->method == METHOD_CONCURY || table->method == METHOD_RESIDUE)
		return 1;
	if (table->method != METHOD_JET)
		return 0;
	__u32 ports = table->flags & TABLE_CLIENT ? 0 : p->ports;
	__u64 hash = hash_address(&table->key, p->src[0], p->src[1], ports);

	/* A row with a mark asks the connection table, which only programs reach. */
	return read_slot(table, scale(hash, table->slots)) < NO_BACKEND;
}

/* Whether a frame is a segment in the middle of a connection of such a service. */
static __always_inline int is_plain(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;
	struct packet p = {};

	if (l3 > end || end - data > FRONT_BYTES)
		return 0;
	if (has_frags && bpf_xdp_get_buff_len(ctx) != end - data)
		return 0;
	if (eth->type == bpf_htons(ETH_P_IP)) {
		if (!parse_plain_tcp(l3, end, &p))
			return 0;
	} else if (eth->type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6 *ip = l3;

		if ((void *)(ip + 1) > end || ip->next != PROTOCOL_TCP ||
		    parse_ipv6(NULL, l3, end, end - l3, &p) != REASON_OK)
			return 0;
	} else {
		return 0;
	}
	if ((p.tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK || !is_ours(data, end))
		return 0;
	struct vip *vip = find_vip(p.dst[0], p.dst[1], p.ports >> 16 | (__u32)PROTOCOL_TCP << 16);

	/* Prefixes and blocks of ports are weir_balance's, and may be more exact than any port of an address. */
	if (!vip && (control->unusual & (UNUSUAL_ANY_PORT | UNUSUAL_WIDE)) == UNUSUAL_ANY_PORT)
		vip = find_vip(p.dst[0], p.dst[1], (__u32)PROTOCOL_TCP << 16);
	if (!vip)
		return 0;
	__u32 number = *(volatile __u32 *)&vip->table;

	/* What is beyond has lists of sources or caps, or one of several addresses, or no table. */
	return number < table_count && reads_table_only(AT(tables, number, table_count), &p);
}

SEC("xdp")
int weir_front(struct xdp_md *ctx)
{
	volatile struct front *now = front;

	if (now->ready == now->memory && is_plain(ctx)) {
		__u64 queue = (__u64)ctx->ingress_ifindex << 32 | ctx->rx_queue_index;
		__u32 *socket = bpf_map_lookup_elem(&queues, &queue);

		/* Without a socket it returns the last argument. */
		if (socket && bpf_redirect_map(&sockets, *socket, XDP_ABORTED) == XDP_REDIRECT)
			return XDP_REDIRECT;
	}
	bpf_tail_call(ctx, &behind, 0);
	return XDP_ABORTED;
}
