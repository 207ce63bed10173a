/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* A table alone, to be copied (docs/add-a-method.md); only builds with the feature `example` have it.
 * The twin of crates/steering/src/methods/example. */
#ifndef WEIR_METHODS_EXAMPLE_H
#define WEIR_METHODS_EXAMPLE_H

#include "../question.h"
#include "../table.h"

static __always_inline __u32 steer_example(const struct table *table, const struct packet *p,
					   struct question *q)
{
	q->counts = starts(q);
	q->reason = REASON_NO_BACKEND; /* if the slot names none */
	return read_slot(table, scale(q->hash, table->slots)) & SLOT_BACKEND;
}

#endif
