/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Whether a service takes packets from a source: a walk through a table of 64-way nodes, of which nearly
 * every source needs the first one only. The twin of crates/plane/src/sources.rs, which says what the words
 * mean. A service with such a table is told by the number of its table, which is out of range, so that the
 * packets of all others have nothing to ask for it. */
#ifndef WEIR_SOURCES_H
#define WEIR_SOURCES_H

#include "maps.h"

#define LIST_FLAGS (TABLE_LISTED | TABLE_LIST_SIDE)
/* And whatever else packets are judged by that come from clients. */
#define JUDGED_FLAGS (LIST_FLAGS | TABLE_CAPPED)

/* The rest of a walk, from the first node on, of which a source asks more. A table that does not end, which
 * no control plane writes, denies. Global, as is_denied, so that the verifier goes through it once. */
__noinline int is_denied_beyond(__u32 at, __u64 first, __u64 high, __u64 low)
{
	const struct source_list *list = AT(lists, at, table_count);
	__u64 begin = list->first4, children = list->children, node = (first - begin) >> 1;
	__u64 next = bpf_be64_to_cpu(high), rest = bpf_be64_to_cpu(low);
	__u32 read = 64 - SOURCE_STRIDE - list->shift6; /* bits that chose the first node */

	if (high == 0 && (__u32)low == IPV4_MAPPED) {
		read = 32 - SOURCE_STRIDE - list->shift4; /* rule: sources.ipv4 */
		next = rest << 32;
		rest = 0;
	}
	read &= 63;
	next = next << read | rest >> (64 - read);
	rest <<= read;
	for (int i = 0; i < SOURCE_STEPS; i++) {
		const __u64 *words = AT(sources, begin + node * 2, source_count - 1);
		__u32 slot = next >> (64 - SOURCE_STRIDE);
		__u64 more = words[0], answers = words[1];

		if (!(more >> slot & 1))
			return !(answers >> slot & 1); /* rule: sources.answer_beyond */
		next = next << SOURCE_STRIDE | rest >> (64 - SOURCE_STRIDE);
		rest <<= SOURCE_STRIDE;
		__u64 child = *AT(sources, children + (node >> 1), source_count);

		node = (__u32)(child >> (node & 1) * 32) +
		       __builtin_popcountll(more & ((1ULL << slot) - 1));
		if (answers >> slot & 1) {
			words = AT(sources, begin + node * 2, source_count - 1);
			__u32 bits = words[1] & 63;

			if (next >> (64 - bits) != words[0])
				return !(words[1] & SOURCE_OTHERS_ALLOWED); /* rule: sources.others */
			next = next << bits | rest >> (64 - bits); /* rule: sources.passed */
			rest <<= bits;
			child = *AT(sources, children + (node >> 1), source_count);
			node = (__u32)(child >> (node & 1) * 32);
		}
	}
	return 1;
}

/* Whether the source of a packet is denied, of a service whose `number` of a table says TABLE_LISTED. */
__noinline int is_denied(__u32 number, __u64 high, __u64 low)
{
	__u32 at = (number & ~(JUDGED_FLAGS | TABLE_BY_ID | TABLE_SALTED | 1)) |
		   !!(number & TABLE_LIST_SIDE);
	const struct source_list *list = AT(lists, at, table_count);
	__u64 chosen, node;

	if (likely(high == 0 && (__u32)low == IPV4_MAPPED)) {
		chosen = bpf_ntohl(low >> 32) >> (list->shift4 & 31); /* rule: sources.first4 */
		node = list->first4;
	} else {
		chosen = bpf_be64_to_cpu(high) >> (list->shift6 & 63); /* rule: sources.first6 */
		node = list->first6;
	}
	node += chosen >> SOURCE_STRIDE << 1;
	const __u64 *words = AT(sources, node, source_count - 1);

	chosen &= 63;
	if (likely(!(words[0] >> chosen & 1)))
		return !(words[1] >> chosen & 1); /* rule: sources.answer */
	return is_denied_beyond(at, node, high, low);
}

#endif
