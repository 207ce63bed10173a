/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* What is not forwarded is counted, by reason. */
#ifndef WEIR_OUTCOME_H
#define WEIR_OUTCOME_H

#include "interfaces.h"
#include "maps.h"

static __noinline int leave(__u32 reason, int verdict)
{
	struct outcome *outcome = bpf_map_lookup_elem(&outcomes, &reason);

	NOTE_REASON(reason);
	if (outcome) {
		if (verdict == XDP_PASS)
			outcome->passed++;
		else
			outcome->dropped++;
	}
	return OWN_ANSWER(verdict);
}

#endif
