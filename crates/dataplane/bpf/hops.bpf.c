// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* Forgets where a processor's frames to a backend go. Beside that stand the processor's counters, and whoever wrote
 * a lane from elsewhere would write over what packets count at that moment: so this is run on each processor. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The balancer's. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lane);
} lanes SEC(".maps");

/* The backend's number is the first argument. */
SEC("raw_tp")
int weir_forget_hop(struct bpf_raw_tracepoint_args *args)
{
	__u32 id = args->args[0];
	struct lane *lane = bpf_map_lookup_elem(&lanes, &id);

	if (lane)
		lane->resolved = 0;
	return 0;
}
