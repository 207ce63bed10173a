/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Methods whose tables begin with rows of 16 bits: a backend, and a mark if there is more to know. */
#ifndef WEIR_ROWS_H
#define WEIR_ROWS_H

#include "question.h"
#include "table.h"

/* The backend of a segment in the middle of its connection, if the row alone decides, as it does for
 * nearly all; else ASK_APART. On its own, so that the ways of other methods have nothing to keep for it. */
static __noinline int row_of(const struct table *table, __u64 hash, __u32 flags)
{
	if (table->method != METHOD_JET && table->method != METHOD_RESIDUE)
		return ASK_APART;
	if (flags & TCP_SPECIAL || table->flags & TABLE_PENDING)
		return ASK_APART; /* rule: rows.special */
	__u32 id = read_slot(table, scale(hash, table->slots));

	/* Below NO_BACKEND there is neither the mark nor the lack of a backend. */
	if (id >= NO_BACKEND)
		return ASK_APART; /* rule: rows.asks */
	if (table->flags & TABLE_MARK)
		mark(hash);
	return id; /* rule: rows.plain */
}

#endif
