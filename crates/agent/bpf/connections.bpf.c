// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* Connections as they open and close, for balancers (docs/agent.md).
 *
 * The kernel's tracepoint is told of each change of a TCP socket's state: of a socket that closes when it is out
 * of the hash tables already, of one that opens when it is in them. So what a dump finds that began after an
 * event was told, and what is told afterwards, leave nothing out.
 *
 * A program at a tracepoint is passed over now and then, and nobody is told (docs/agent.md). So what opens is told
 * by the socket itself first (BPF_PROG_TYPE_SOCK_OPS at the root of the control groups), where there is such a
 * program and the server is in these groups; the tracepoint comes next, and tells what that has not.
 *
 * A half-open connection has no socket yet (only a request, or a cookie), so SYNs come to nothing here. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "connections.h"

/* The parts of the kernel's structures that are read; where they are, the kernel's own description says. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct net {
	__u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};

struct sock_common {
	__u32 skc_daddr;
	__u32 skc_rcv_saddr;
	__u16 skc_dport;
	unsigned short skc_family;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
};

struct inet_sock {
	__u16 inet_sport;
};
#pragma clang attribute pop

#define FAMILY_IPV4 2
#define FAMILY_IPV6 10
#define PROTOCOL_TCP 6

/* include/net/tcp_states.h */
#define ESTABLISHED 1
#define SYN_SENT 2
#define SYN_RECV 3
#define FIN_WAIT1 4
#define FIN_WAIT2 5
#define CLOSE 7
#define LISTEN 10
#define CLOSING 11

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The network namespace. */
const volatile __u64 network = 0;

/* Its reader looks by itself every few milliseconds: a wake-up costs more than all else here. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} changes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct told_of);
	__type(value, __u32);
} told SEC(".maps");

/* What weir_opened has told last on this processor: the tracepoint is next with the same. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct change);
} opened_last SEC(".maps");

/* Changes that there was no room for. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} missed SEC(".maps");

/* What the change means; -1: nothing. */
static __always_inline int meaning(int from, int to)
{
	if (to == ESTABLISHED)
		return from == SYN_RECV ? CONNECTION_OPENED : -1;
	if (to != CLOSE)
		return -1;
	switch (from) {
	case SYN_SENT:
	case SYN_RECV:
	case LISTEN:
	case CLOSE:
		return -1;
	case FIN_WAIT1:
	case FIN_WAIT2:
	case CLOSING:
		/* Reset, or in TIME_WAIT from now on: that does not show here. */
		return CONNECTION_LINGERS;
	}
	return CONNECTION_CLOSED;
}

static __always_inline void mapped(__u8 *to, __u32 address)
{
	__builtin_memset(to, 0, 10);
	to[10] = 0xff;
	to[11] = 0xff;
	__builtin_memcpy(to + 12, &address, 4);
}

/* The ends of the connection. Whether they could be read. */
static __always_inline int ends(struct change *change, struct sock *sk)
{
	struct sock_common *common = &sk->__sk_common;
	__u16 port;

	if (common->skc_family == FAMILY_IPV4) {
		mapped(change->local, common->skc_rcv_saddr);
		mapped(change->remote, common->skc_daddr);
	} else if (common->skc_family == FAMILY_IPV6) {
		if (bpf_core_read(change->local, 16, &common->skc_v6_rcv_saddr) ||
		    bpf_core_read(change->remote, 16, &common->skc_v6_daddr))
			return 0;
	} else {
		return 0;
	}
	/* A socket that has closed has given its port back, and skc_num is 0 by then. */
	if (bpf_core_read(&port, sizeof(port), &((struct inet_sock *)sk)->inet_sport))
		return 0;
	change->local_port = bpf_ntohs(port);
	change->remote_port = bpf_ntohs(common->skc_dport);
	return 1;
}

static __always_inline int is_told(const struct change *change)
{
	struct told_of of;

	__builtin_memcpy(of.address, change->local, 16);
	of.port = change->local_port;
	if (bpf_map_lookup_elem(&told, &of))
		return 1;
	of.port = 0;
	return bpf_map_lookup_elem(&told, &of) != 0;
}

static __always_inline void tell(struct change *change)
{
	__u32 zero = 0;

	if (bpf_ringbuf_output(&changes, change, sizeof(*change), BPF_RB_NO_WAKEUP)) {
		__u64 *count = bpf_map_lookup_elem(&missed, &zero);

		if (count)
			++*count;
	}
}

/* A packet that comes in between may have another one noted there: then the same is told twice, which changes
 * nothing, as it is before anything else is told of that connection. */
static __always_inline int is_told_already(const struct change *change)
{
	__u32 zero = 0, one[sizeof(*change) / 4], other[sizeof(*change) / 4];
	struct change *last = bpf_map_lookup_elem(&opened_last, &zero);
	__u32 differs = 0;

	if (!last)
		return 0;
	__builtin_memcpy(one, change, sizeof(one));
	__builtin_memcpy(other, last, sizeof(other));
	for (unsigned int at = 0; at < sizeof(*change) / 4; at++)
		differs |= one[at] ^ other[at];
	if (differs)
		return 0;
	/* The next one with these ends is another connection. */
	last->kind = CONNECTION_CLOSED;
	return 1;
}

SEC("tp_btf/inet_sock_set_state")
int weir_connections(__u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	int kind = meaning((int)arguments[1], (int)arguments[2]);
	struct change change;

	if (kind < 0 || sk->sk_protocol != PROTOCOL_TCP ||
	    sk->__sk_common.skc_net.net->net_cookie != network)
		return 0;
	change.kind = kind;
	if (!ends(&change, sk))
		return 0;
	/* Asked first, as it costs less than to look whether it is told at all. */
	if (kind == CONNECTION_OPENED && is_told_already(&change))
		return 0;
	if (is_told(&change))
		tell(&change);
	return 0;
}

SEC("sockops")
int weir_opened(struct bpf_sock_ops *sock)
{
	struct change change;
	__u32 zero = 0;

	if (sock->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB || bpf_get_netns_cookie(sock) != network)
		return 1;
	if (sock->family == FAMILY_IPV4) {
		mapped(change.local, sock->local_ip4);
		mapped(change.remote, sock->remote_ip4);
	} else if (sock->family == FAMILY_IPV6) {
		__u32 local[] = { sock->local_ip6[0], sock->local_ip6[1], sock->local_ip6[2],
				  sock->local_ip6[3] };
		__u32 remote[] = { sock->remote_ip6[0], sock->remote_ip6[1], sock->remote_ip6[2],
				   sock->remote_ip6[3] };

		__builtin_memcpy(change.local, local, 16);
		__builtin_memcpy(change.remote, remote, 16);
	} else {
		return 1;
	}
	change.local_port = sock->local_port;
	/* As on the wire, in the upper half of the word as it stands in memory. */
	change.remote_port = bpf_ntohl(sock->remote_port);
	change.kind = CONNECTION_OPENED;
	if (!is_told(&change))
		return 1;
	tell(&change);
	bpf_map_update_elem(&opened_last, &zero, &change, BPF_ANY);
	return 1;
}
