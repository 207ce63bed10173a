// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* What makes a host a backend that balancers can send to: packets out of the tunnels that they come in,
 * before the kernel sees them, so that it needs no tunnel device; and segments of clients that leave room for
 * the tunnel (docs/agent.md).
 *
 * All that the programs know is constant: who changes it loads them anew, and replaces them in one step. */
#define WEIR_CONTEXT struct __sk_buff
#include "abi.h"
#include "parse.h"
#include "backend.h"

#include <linux/in.h>
#include <linux/pkt_cls.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile __u64 seed = 1;
const volatile __u32 tunnels = 0;
const volatile __u32 ports_used = 0;
const volatile __u32 sources_used = 0;
/* The largest segments that services may be sent, over each family; 0: as large as they say. */
const volatile __u32 most_ipv4 = 0;
const volatile __u32 most_ipv6 = 0;
/* For the bench: frames go back to where they came from, and not to the kernel. */
const volatile __u32 reflect = 0;
const volatile struct port ports[PORTS] = {};
const volatile struct network sources[SOURCES] = {};
const volatile struct place places[PLACES] = {};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} backend_counts SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *one = bpf_map_lookup_elem(&backend_counts, &what);

	if (one)
		++*one;
}

/* What an address is: it stands in one of two places. */
static __always_inline __u32 what_is(__u64 high, __u64 low)
{
	/* The last bytes of an address, which differ, are the upper ones of a word. */
	__u64 hash = ((low ^ low >> 32) + seed) * 0x9e3779b97f4a7c15ULL ^
		     ((high ^ high >> 32) + seed) * 0xbf58476d1ce4e5b9ULL;
	const volatile struct place *one = &places[hash >> 53 & (PLACES - 1)];

	if (one->address[1] == low && one->address[0] == high)
		return one->is;
	one = &places[hash >> 32 & (PLACES - 1)];
	if (one->address[1] == low && one->address[0] == high)
		return one->is;
	return ADDRESS_NONE;
}

/* Whether a tunnel may come from this address. */
static __always_inline int is_trusted(__u64 high, __u64 low)
{
	if (!sources_used)
		return 1;
	for (__u32 i = 0; i < SOURCES && i < sources_used; i++) {
		if ((high & sources[i].mask[0]) == sources[i].address[0] &&
		    (low & sources[i].mask[1]) == sources[i].address[1])
			return 1;
	}
	return 0;
}

/* The packet around the one that is for a service. */
struct outer {
	__u64 src[2];
	__u64 dst[2];
	__u32 length; /* of what follows its IP header, by that header */
	__u8 protocol;
	__u8 marked; /* a router on the way had to queue it: congestion experienced, RFC 3168 */
};

enum found {
	NOT_FOUND, /* it is no tunnel: nothing is counted */
	DAMAGED,
	IN_FRAGMENTS,
	INNER_IPV4,
	INNER_IPV6,
};

static __always_inline int is_tunnel(__u8 protocol)
{
	switch (protocol) {
	case IPPROTO_IPIP:
	case IPPROTO_IPV6:
		return tunnels & KIND(TUNNEL_IPIP);
	case IPPROTO_GRE:
		return tunnels & KIND(TUNNEL_GRE);
	case IPPROTO_UDP:
		return tunnels & (KIND(TUNNEL_FOU) | KIND(TUNNEL_GUE));
	}
	return 0;
}

static __always_inline __u32 port_of(__u16 number)
{
	for (__u32 i = 0; i < PORTS && i < ports_used; i++) {
		if (ports[i].number == number)
			return ports[i].tunnel;
	}
	return 0;
}

/* `bytes`: of the frame from the IP header on. The sum of the header is looked at here, as the kernel will
 * not see it. */
static __always_inline enum found read_ipv4(struct ipv4 *ip, __u32 bytes, struct outer *outer)
{
	__u32 total = bpf_ntohs(ip->total_length);

	if (ip->version_ihl != 0x45 || total < sizeof(*ip) || total > bytes)
		return DAMAGED;
	const __u32 *words = (void *)ip;
	__u64 sum = (__u64)words[0] + words[1] + words[2] + words[3] + words[4];

	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	if (sum != 0xffff)
		return DAMAGED;
	if (ip->fragment & bpf_htons(0x3fff))
		return IN_FRAGMENTS;
	outer->src[1] = (__u64)ip->src << 32 | IPV4_MAPPED;
	outer->dst[1] = (__u64)ip->dst << 32 | IPV4_MAPPED;
	outer->length = total - sizeof(*ip);
	outer->marked = (ip->tos & 3) == 3;
	return INNER_IPV4;
}

static __always_inline enum found read_ipv6(struct ipv6 *ip, __u32 bytes, struct outer *outer)
{
	__u32 length = bpf_ntohs(ip->payload_length);

	if ((bpf_ntohl(ip->version_flow) >> 28) != 6 || length + sizeof(*ip) > bytes)
		return DAMAGED;
	outer->src[0] = ip->src[0];
	outer->src[1] = ip->src[1];
	outer->dst[0] = ip->dst[0];
	outer->dst[1] = ip->dst[1];
	outer->length = length;
	outer->marked = (bpf_ntohl(ip->version_flow) >> 20 & 3) == 3;
	return INNER_IPV6;
}

/* Which family is inside, by what stands between, and where it begins. What is as no balancer of weir's sends
 * it (a checksum in UDP, flags in GRE, options in GUE) is left to the kernel. */
static __always_inline enum found look_inside(const struct outer *outer, void **at, void *end)
{
	if (outer->protocol == IPPROTO_IPIP)
		return INNER_IPV4;
	if (outer->protocol == IPPROTO_IPV6)
		return INNER_IPV6;
	if (outer->protocol == IPPROTO_GRE) {
		__be32 *gre = *at;

		if (outer->length < 4 || (void *)(gre + 1) > end)
			return DAMAGED;
		*at = gre + 1;
		if (*gre == bpf_htonl(ETH_P_IP))
			return INNER_IPV4;
		return *gre == bpf_htonl(ETH_P_IPV6) ? INNER_IPV6 : NOT_FOUND;
	}
	struct udp *udp = *at;

	if (outer->length < sizeof(*udp) + 4 || (void *)(udp + 1) + 4 > end)
		return NOT_FOUND;
	__u32 tunnel = port_of(udp->ports >> 16);

	if (!tunnel || udp->check)
		return NOT_FOUND;
	if (bpf_ntohs(udp->length) != outer->length)
		return DAMAGED;
	__be32 *first = (void *)(udp + 1);

	*at = first;
	if (tunnel == TUNNEL_FOU) {
		__u8 version = *(__u8 *)first >> 4;

		return version == 4 ? INNER_IPV4 : version == 6 ? INNER_IPV6 : NOT_FOUND;
	}
	*at = first + 1;
	if (*first == bpf_htonl(IPPROTO_IPIP << 16))
		return INNER_IPV4;
	return *first == bpf_htonl(IPPROTO_IPV6 << 16) ? INNER_IPV6 : NOT_FOUND;
}

/* RFC 6040 section 4.2: a mark of the way goes on with the packet, and a packet that cannot carry it is
 * dropped. Returns whether that is so. */
static __always_inline int mark_ipv4(struct ipv4 *ip)
{
	__u8 ecn = ip->tos & 3;

	if (!ecn)
		return 1;
	if (ecn == 3)
		return 0;
	/* RFC 1624; the field is the second byte of its word. */
	__u32 more = 3 - ecn;
	__u32 sum = (__u16)~bpf_ntohs(ip->check) + more;

	ip->check = bpf_htons((__u16)~((sum & 0xffff) + (sum >> 16)));
	ip->tos |= 3;
	return 0;
}

static __always_inline int mark_ipv6(struct ipv6 *ip)
{
	__u32 ecn = bpf_ntohl(ip->version_flow) >> 20 & 3;

	if (!ecn)
		return 1;
	ip->version_flow |= bpf_htonl(3 << 20);
	return 0;
}

/* Checks the packet inside, of which `left` bytes may be, and puts the mark into it. Returns what is counted
 * if it is not to be taken out. */
static __always_inline __u32 check_inside(void *at, void *end, enum found family, __u32 left, int marked)
{
	if (family == INNER_IPV4) {
		struct ipv4 *ip = at;

		if ((void *)(ip + 1) > end)
			return COUNT_DAMAGED;
		__u32 header = (ip->version_ihl & 15) * 4, total = bpf_ntohs(ip->total_length);

		if (ip->version_ihl >> 4 != 4 || header < sizeof(*ip) || total < header || total > left)
			return COUNT_DAMAGED;
		if (what_is(0, (__u64)ip->dst << 32 | IPV4_MAPPED) != ADDRESS_SERVICE)
			return COUNT_STRANGE;
		return unlikely(marked) && mark_ipv4(ip) ? COUNT_CONGESTED : COUNT_TAKEN;
	}
	struct ipv6 *ip = at;

	if ((void *)(ip + 1) > end)
		return COUNT_DAMAGED;
	if ((*(__u8 *)ip >> 4) != 6 || bpf_ntohs(ip->payload_length) + sizeof(*ip) > left)
		return COUNT_DAMAGED;
	if (what_is(ip->dst[0], ip->dst[1]) != ADDRESS_SERVICE)
		return COUNT_STRANGE;
	return unlikely(marked) && mark_ipv6(ip) ? COUNT_CONGESTED : COUNT_TAKEN;
}

/* Cuts `bytes` out behind the front of the frame, two addresses and `tags` tags, and gives it another type. The
 * front is kept in registers: what was stored a moment ago in other pieces is slow to read. */
static __always_inline int cut(struct xdp_md *ctx, __u32 bytes, __u32 tags, __be16 type)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 *words = data;

	if (data + 22 > end)
		return XDP_DROP;
	__u32 w0 = words[0], w1 = words[1], w2 = words[2], w3 = words[3], w4 = words[4];

	if (bpf_xdp_adjust_head(ctx, bytes)) {
		count(COUNT_REFUSED);
		return XDP_DROP;
	}
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	words = data;
	if (data + 22 > end)
		return XDP_DROP;
	words[0] = reflect ? w1 >> 16 | w2 << 16 : w0;
	words[1] = reflect ? w2 >> 16 | w0 << 16 : w1;
	words[2] = reflect ? w0 >> 16 | w1 << 16 : w2;
	if (likely(!tags)) {
		*(__be16 *)(data + 12) = type;
	} else if (tags == 1) {
		words[3] = w3;
		*(__be16 *)(data + 16) = type;
	} else {
		words[3] = w3;
		words[4] = w4;
		*(__be16 *)(data + 20) = type;
	}
	count(COUNT_TAKEN);
	return reflect ? XDP_TX : XDP_PASS;
}

SEC("xdp")
int weir_decap(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;

	if (l3 > end)
		return XDP_PASS;
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return XDP_PASS;
	__u32 tags = (l3 - data - sizeof(*eth)) / sizeof(struct vlan_tag);
	/* All of the frame: more than there is up to `end` if it comes in several buffers. */
	__u32 bytes = has_frags ? bpf_xdp_get_buff_len(ctx) : end - data;
	struct outer outer = {};
	enum found found;
	void *at;

	bytes -= l3 - data;
	if (type == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = l3;

		at = ip + 1;
		if (at > end || !is_tunnel(ip->protocol))
			return XDP_PASS;
		outer.protocol = ip->protocol;
		found = read_ipv4(ip, bytes, &outer);
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6 *ip = l3;

		at = ip + 1;
		if (at > end || !is_tunnel(ip->next))
			return XDP_PASS;
		outer.protocol = ip->next;
		found = read_ipv6(ip, bytes, &outer);
	} else {
		return XDP_PASS;
	}
	void *l4 = at;

	if (likely(found >= INNER_IPV4))
		found = look_inside(&outer, &at, end);
	__u32 what;

	switch (found) {
	case NOT_FOUND:
		return XDP_PASS;
	case DAMAGED:
		what = COUNT_DAMAGED;
		break;
	case IN_FRAGMENTS:
		/* UDP may be anything. */
		if (outer.protocol == IPPROTO_UDP)
			return XDP_PASS;
		what = COUNT_FRAGMENT;
		break;
	default:
		if (what_is(outer.dst[0], outer.dst[1]) != ADDRESS_OWN)
			what = COUNT_ELSEWHERE;
		else if (!is_trusted(outer.src[0], outer.src[1]))
			what = COUNT_UNTRUSTED;
		else
			what = check_inside(at, end, found, outer.length - (__u32)(at - l4), outer.marked);
	}
	if (likely(what == COUNT_TAKEN))
		return cut(ctx, at - l3, tags,
			   found == INNER_IPV4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6));
	count(what);
	return what == COUNT_CONGESTED ? XDP_DROP : XDP_PASS;
}

#define MSS_OPTION 2
#define MSS_BYTES 4
#define OPTION_BYTES 40
/* Bytes of headers that are brought together: two VLAN tags, IPv6, TCP with all options. */
#define SYN_HEADERS 122
#define SYN_CHECK_AT 16

/* Lowers the segment size that stands at `at` of the frame. */
static __always_inline void lower(struct __sk_buff *skb, __u32 l4, __u32 at, __u32 most)
{
	__be16 old, new = bpf_htons(most);

	if (bpf_skb_load_bytes(skb, at, &old, sizeof(old)) || bpf_ntohs(old) <= most)
		return;
	__u32 was = old, is = new;

	/* Words of the sum begin at even offsets of the segment. */
	if ((at - l4) & 1) {
		was = (was >> 8 | was << 8) & 0xffff;
		is = (is >> 8 | is << 8) & 0xffff;
	}
	if (bpf_skb_store_bytes(skb, at, &new, sizeof(new), 0) ||
	    bpf_l4_csum_replace(skb, l4 + SYN_CHECK_AT, was, is, sizeof(__u16)))
		return;
	count(COUNT_LOWERED);
}

/* A SYN+ACK says how large segments the client may send: so large that they fit into the tunnel. Others know
 * nothing of it, and their packets stay as they are. */
SEC("tc")
int weir_segments(struct __sk_buff *skb)
{
	__u32 wanted = skb->len < SYN_HEADERS ? skb->len : SYN_HEADERS;

	if ((__u32)(skb->data_end - skb->data) < wanted)
		bpf_skb_pull_data(skb, wanted);
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;

	if (l3 > end)
		return TC_ACT_UNSPEC;
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return TC_ACT_UNSPEC;
	__u64 src[2];
	struct tcp *tcp;
	__u32 most;

	if (type == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = l3;

		tcp = (void *)(ip + 1);
		if ((void *)tcp > end || ip->version_ihl != 0x45 || ip->protocol != PROTOCOL_TCP)
			return TC_ACT_UNSPEC;
		src[0] = 0;
		src[1] = (__u64)ip->src << 32 | IPV4_MAPPED;
		most = most_ipv4;
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6 *ip = l3;

		tcp = (void *)(ip + 1);
		if ((void *)tcp > end || ip->next != PROTOCOL_TCP)
			return TC_ACT_UNSPEC;
		src[0] = ip->src[0];
		src[1] = ip->src[1];
		most = most_ipv6;
	} else {
		return TC_ACT_UNSPEC;
	}
	if (!most || (void *)(tcp + 1) > end ||
	    (tcp->flags & (TCP_SYN | TCP_ACK | TCP_RST)) != (TCP_SYN | TCP_ACK) ||
	    what_is(src[0], src[1]) != ADDRESS_SERVICE)
		return TC_ACT_UNSPEC;
	__u32 l4 = (void *)tcp - data;
	__u32 at = l4 + sizeof(*tcp), until = l4 + (tcp->offset >> 4) * 4;

	/* No stack has another option but a few in front of it. */
	for (int i = 0; i < OPTION_BYTES; i++) {
		__u8 option[2];

		if (at + 2 > until || bpf_skb_load_bytes(skb, at, option, sizeof(option)) || !option[0])
			break;
		if (option[0] == 1) {
			at++;
			continue;
		}
		if (option[0] == MSS_OPTION) {
			if (option[1] == MSS_BYTES && at + MSS_BYTES <= until)
				lower(skb, l4, at + 2, most);
			break;
		}
		if (option[1] < 2)
			break;
		at += option[1];
	}
	return TC_ACT_UNSPEC;
}
