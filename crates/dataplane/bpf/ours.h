/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Whose a frame is. */
#ifndef WEIR_OURS_H
#define WEIR_OURS_H

#include "maps.h"
#include "parse.h"

/* Frames for other hosts reach us when a switch floods or the interface is promiscuous; taking
 * them would deliver packets twice. They are not left to the kernel either: the interface may just
 * have got another address, and the kernel would answer with a reset. */
static __always_inline int is_ours(const void *data, const void *end)
{
	if (data + sizeof(struct ethernet) > end)
		return 0;
	__u64 mac = (__u64)*(__u32 *)data | (__u64)*(__u16 *)(data + 4) << 32;

	if (likely(control->own_macs[0] == mac) || control->own_macs[0] == 0)
		return 1; /* rule: host.first */
#pragma unroll
	for (int i = 1; i < OWN_MACS; i++)
		if (control->own_macs[i] == mac)
			return 1; /* rule: host.second */
	return 0;
}

#endif
