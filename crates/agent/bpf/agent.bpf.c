// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* Backends that answer clients directly: cookies into the timestamps that they send, and their own back into
 * those that they get (docs/agent.md). What becomes of a timestamp is said by stamps.h, which the balancer in
 * the way of the answers has too. */
#define WEIR_CONTEXT struct __sk_buff
#include "abi.h"

/* Bits of the clock that stay in a timestamp; less than 16 only in tests, which want a wrap every second. */
const volatile __u32 low_bits = 16;

#define LOW_BITS (low_bits & 31)
#include "stamps.h"
#include "parse.h"
#include "tcp_options.h"
#include "agent.h"

#include <linux/pkt_cls.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Connections that have proved to be there: their clients have echoed what was sent to them. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct answer);
} flows SEC(".maps");

/* Those that have not yet, so that a flood of SYNs takes the room of none that is open. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct answer);
} openings SEC(".maps");

/* The services, as the operator has named them. All other connections are left alone: anybody can send a
 * SYN that looks as if it told a cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ENDPOINTS);
	__type(key, struct endpoint);
	__type(value, __u64);
} endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *one = bpf_map_lookup_elem(&counts, &what);

	if (one)
		++*one;
}

/* Puts a value in place of the four bytes at `field` of the option. Only the helpers know what the checksum
 * covers so far, which a device may be about to finish. */
static __always_inline int put(struct __sk_buff *skb, __u64 stamps, __u32 field, __u32 old, __u32 new)
{
	__u32 at = (stamps >> 32 & 0x3fff) + field;
	__u32 l4 = stamps >> 48 & 0x3fff;
	__u32 was = bpf_htonl(old), is = bpf_htonl(new), put = is;

	if (was == is)
		return 0;
	/* Words of the sum begin at even offsets of the segment. */
	if ((at - l4) & 1) {
		was = was << 8 | was >> 24;
		is = is << 8 | is >> 24;
	}
	if (bpf_skb_store_bytes(skb, at, &put, sizeof(put), 0) ||
	    bpf_l4_csum_replace(skb, l4 + CHECK_AT, was, is, sizeof(is))) {
		count(COUNT_FAILED);
		return 0;
	}
	return 1;
}

/* Whether it is a TCP packet with its headers at hand; of others nothing is known here. */
static __always_inline int parse(struct __sk_buff *skb, struct packet *p)
{
	__u32 wanted = skb->len < HEADERS ? skb->len : HEADERS;

	if ((__u32)(skb->data_end - skb->data) < wanted)
		bpf_skb_pull_data(skb, wanted);
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;

	if (l3 > end)
		return 0;
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return 0;
	__u64 before = l3 - data;

	/* The verifier takes no shorter arithmetic on pointers. */
	asm volatile("" : "+r"(before));
	__u32 bytes = skb->len - before;
	enum reason reason = REASON_NOT_IP;

	if (type == bpf_htons(ETH_P_IP))
		reason = parse_ipv4(l3, end, bytes, p);
	else if (type == bpf_htons(ETH_P_IPV6))
		reason = parse_ipv6(skb, l3, end, bytes, p);
	return reason == REASON_OK && p->protocol == PROTOCOL_TCP;
}

/* Whether these are an address and port of a service; port 0 stands for all. */
static __always_inline int is_endpoint(const struct flow_key *key)
{
	struct endpoint to = { .address = { key->dst[0], key->dst[1] }, .port = key->ports >> 16 };

	if (bpf_map_lookup_elem(&endpoints, &to))
		return 1;
	to.port = 0;
	return bpf_map_lookup_elem(&endpoints, &to) != NULL;
}

/* A SYN that tells its cookie. One that comes again changes nothing. Nor does it change anything for a
 * connection that is open until TCP takes it for a new one, and answers it: its sender may be anybody. */
static __always_inline void open(struct __sk_buff *skb, const struct flow_key *key)
{
	if (!is_endpoint(key))
		return;
	__u64 stamps = find_timestamps(skb);
	__u32 echo = stamps;

	if (!stamps || (echo & (TOLD | 0xffff)) != (TOLD | TOLD_MARK))
		return;
	__u16 cookie = echo >> 16 & COOKIE_NUMBERS;
	struct answer *known = bpf_map_lookup_elem(&flows, key);

	if (known && known->number == cookie) {
		bpf_map_delete_elem(&openings, key);
	} else {
		known = bpf_map_lookup_elem(&openings, key);
		if (!known || known->number != cookie) {
			struct answer fresh = { .number = cookie };

			bpf_map_update_elem(&openings, key, &fresh, BPF_ANY);
		}
	}
	put(skb, stamps, ECHO_AT, echo, 0);
	count(COUNT_OPENED);
}

/* Whether anything but a SYN was seen of it. */
static __always_inline int has_begun(const struct answer *known)
{
	return known->flags & (ANSWER_STARTED | ANSWER_HEARD);
}

/* Of a connection that has begun. What is in neither table may have moved from the second to the first
 * meanwhile, by a packet on another CPU: it is put there before it is taken away here. */
static __always_inline struct answer *find_begun(const struct flow_key *key, int *proved)
{
	struct answer *known = bpf_map_lookup_elem(&flows, key);

	*proved = 1;
	if (known)
		return known;
	known = bpf_map_lookup_elem(&openings, key);
	if (!known)
		return bpf_map_lookup_elem(&flows, key);
	*proved = 0;
	return has_begun(known) ? known : NULL;
}

/* A client's packet after its SYN: the backend gets its own timestamp back. */
static __always_inline void restore(struct __sk_buff *skb, const struct flow_key *key)
{
	int proved;
	struct answer *known = find_begun(key, &proved);

	if (!known && !is_endpoint(key))
		return;
	__u64 stamps = find_timestamps(skb);
	__u32 echo = stamps;
	__u16 cookie = echo >> 16 & COOKIE_NUMBERS;

	if (!stamps)
		return;
	if (!known) {
		/* Nothing is known of it any more. The client has the cookie, so its packet brings it back;
		 * and what it echoes, so that the next timestamp is newer for it. */
		struct answer fresh = { .number = cookie };

		bpf_map_update_elem(&openings, key, &fresh, BPF_ANY);
		count(COUNT_RESUMED);
		proved = 0;
		known = bpf_map_lookup_elem(&openings, key);
		if (!known)
			return;
	}
	__u32 own = incoming(known, echo);

	/* It echoes what was sent without a cookie, while nobody wrote them: its own. */
	if (known->number != cookie) {
		count(COUNT_FOREIGN);
		return;
	}
	if (!proved && known->flags & ANSWER_STARTED && known->newest - own < DEAF_AFTER) {
		struct answer copy = *known;

		if (!bpf_map_update_elem(&flows, key, &copy, BPF_ANY))
			bpf_map_delete_elem(&openings, key);
	}
	if (put(skb, stamps, ECHO_AT, echo, own))
		count(COUNT_RESTORED);
}

SEC("tc")
int weir_ingress(struct __sk_buff *skb)
{
	struct packet p = {};

	if (!parse(skb, &p))
		return TC_ACT_UNSPEC;
	struct flow_key key = {
		.src = { p.src[0], p.src[1] },
		.dst = { p.dst[0], p.dst[1] },
		.ports = p.ports,
		.protocol = PROTOCOL_TCP,
	};
	__u8 flags = p.tcp_flags & (TCP_SYN | TCP_ACK | TCP_FIN | TCP_RST);

	if (flags == TCP_SYN)
		open(skb, &key);
	else if ((flags & (TCP_SYN | TCP_ACK)) == TCP_ACK)
		restore(skb, &key);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int weir_egress(struct __sk_buff *skb)
{
	struct packet p = {};

	if (!parse(skb, &p) || (p.tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
		return TC_ACT_UNSPEC;
	struct flow_key key = {
		.src = { p.dst[0], p.dst[1] },
		.dst = { p.src[0], p.src[1] },
		.ports = p.ports >> 16 | p.ports << 16,
		.protocol = PROTOCOL_TCP,
	};
	int starts = p.tcp_flags & TCP_SYN, proved;
	struct answer *known = NULL;

	if (!starts) {
		known = find_begun(&key, &proved);
	} else {
		struct answer *opening = bpf_map_lookup_elem(&openings, &key);

		known = bpf_map_lookup_elem(&flows, &key);
		/* TCP has taken the SYN: the connection that had these ports before is over. */
		if (known && opening)
			bpf_map_delete_elem(&flows, &key);
		if (opening)
			known = opening;
	}
	if (!known)
		return TC_ACT_UNSPEC;
	__u64 stamps = find_timestamps(skb);

	if (!stamps) {
		/* Without timestamps, so there will be no cookies. */
		if (starts)
			bpf_map_delete_elem(&openings, &key);
		return TC_ACT_UNSPEC;
	}
	__u32 at = stamps >> 32 & 0x3fff;
	void *option = (void *)(long)skb->data + at;

	if (option + sizeof(struct timestamps) > (void *)(long)skb->data_end)
		return TC_ACT_UNSPEC;
	__u32 own = bpf_ntohl(((struct timestamps *)option)->value);
	__u32 value = outgoing(known, own, known->number, starts);

	if (put(skb, stamps, VALUE_AT, own, value))
		count(COUNT_WRITTEN);
	return TC_ACT_UNSPEC;
}
