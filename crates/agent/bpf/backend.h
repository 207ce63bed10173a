/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Shapes and numbers of the programs that make a backend ready; crates/agent/src/ready/decapsulate.rs has
 * the same. */
#ifndef WEIR_BACKEND_H
#define WEIR_BACKEND_H

#include "abi.h"

/* Places of the table of addresses, a power of two, and the bits that name one. At most a quarter of them
 * is taken, so that two choices are enough. */
#define PLACES 2048

/* Ports at which UDP tunnels end. */
#define PORTS 16

/* Networks that tunnels may come from. */
#define SOURCES 32

/* A kind of tunnels, TUNNEL_* of the balancer's, as a bit of `tunnels`. */
#define KIND(tunnel) (1 << (tunnel))

/* What an address is. */
#define ADDRESS_NONE 0
#define ADDRESS_OWN 1     /* this host's alone: tunnels end here */
#define ADDRESS_SERVICE 2 /* a service's, which all of its backends have */

/* Addresses are pairs of words as on the wire, IPv4 as ::ffff:a.b.c.d. */
struct place {
	__u64 address[2];
	__u64 is;
};

struct port {
	__u16 number; /* as on the wire */
	__u16 tunnel;
};

struct network {
	__u64 address[2];
	__u64 mask[2];
};

/* What is counted, in packets. */
enum {
	COUNT_TAKEN,
	COUNT_ELSEWHERE,
	COUNT_STRANGE,
	COUNT_UNTRUSTED,
	COUNT_DAMAGED,
	COUNT_FRAGMENT,
	COUNT_CONGESTED,
	COUNT_REFUSED,
	COUNT_LOWERED,
	COUNTS,
};

#endif
