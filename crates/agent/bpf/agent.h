/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Shapes and numbers of the program of backends; crates/agent/src/counts.rs has the same numbers. */
#ifndef WEIR_AGENT_H
#define WEIR_AGENT_H

#include "abi.h"

/* Bytes of headers that are brought together: two VLAN tags, IPv6 with 64 bytes of extensions, TCP with all
 * options. Not more, as each packet's head is copied that has less in one piece. */
#define HEADERS 186

/* The most services that an agent is told of. */
#define ENDPOINTS 4096

/* An address and port of this host, as on the wire; port 0 stands for all. */
struct endpoint {
	__u64 address[2];
	__u64 port;
};

/* What is counted, in packets. */
enum {
	COUNT_OPENED,
	COUNT_WRITTEN,
	COUNT_RESTORED,
	COUNT_RESUMED,
	COUNT_FOREIGN,
	COUNT_FAILED,
	COUNTS,
};

#endif
