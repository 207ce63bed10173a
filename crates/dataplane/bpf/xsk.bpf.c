// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* Hands a port's frames to the AF_XDP socket of a forwarder in user space. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Both are made as large as the forwarder has ports. */
#define PORTS 64

/* Where in `sockets` the socket of an interface stands. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, __u32);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Frames to group addresses, which are the kernel's. They are rare, so CPUs may share it. */
__u64 group_frames = 0;

SEC("xdp")
int xsk_redirect(struct xdp_md *ctx)
{
	__u8 *frame = (void *)(long)ctx->data;

	if (frame + 14 > (__u8 *)(long)ctx->data_end)
		return XDP_PASS;
	if (frame[0] & 1) {
		__sync_fetch_and_add(&group_frames, 1);
		return XDP_PASS;
	}
	__u32 interface = ctx->ingress_ifindex;
	__u32 *slot = bpf_map_lookup_elem(&slots, &interface);

	/* The last argument is the verdict where no socket stands. */
	return slot ? bpf_redirect_map(&sockets, *slot, XDP_PASS) : XDP_PASS;
}
