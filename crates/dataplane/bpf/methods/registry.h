/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* The methods of the program, and the way to them. <weir/methods.h> is written by the build: those of
 * the registry in steering that have a header in this directory, in the registry's order. A method
 * is added by a line there and a header here. */
#ifndef WEIR_METHODS_REGISTRY_H
#define WEIR_METHODS_REGISTRY_H

#include "../question.h"
#include "../table.h"
#include <weir/methods.h>
#include "../rows.h"

/* The methods that are inlined into the way of plain packets. All others cost those nothing: they stand
 * in weir_apart, but for rows and what they lead to. */
static __always_inline __u32 steer(const struct table *table, const struct packet *p,
				   struct question *q)
{
	if (table->method == METHOD_CONCURY)
		return steer_concury(table, p, q);
	if (table->method == METHOD_TRACKED)
		return steer_tracked_plain(table, p, q);
	if (table->method == METHOD_CHEETAH)
		return steer_cheetah_plain(table, p, q);
	return p->protocol == PROTOCOL_TCP ? row_of(q->ctx, table, q->hash, q->flags) : ASK_APART;
}

/* All methods. A table of a method that is none of these, which another version of weir may have published,
 * decides nothing. */
static __always_inline __u32 steer_any(const struct table *table, const struct packet *p,
				       struct question *q)
{
#define DECIDE(number, steer_method)                                                               \
	if (table->method == number)                                                               \
		return steer_method(table, p, q);
	METHODS(DECIDE)
#undef DECIDE
	q->reason = REASON_UNKNOWN_METHOD;
	return NO_BACKEND;
}

#endif
