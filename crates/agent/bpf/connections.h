/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* What the program that follows connections tells; crates/agent/src/speak/kernel.rs reads it. */
#ifndef WEIR_CONNECTIONS_H
#define WEIR_CONNECTIONS_H

#include <linux/types.h>

/* What becomes of a connection. */
#define CONNECTION_OPENED 0
#define CONNECTION_CLOSED 1
#define CONNECTION_LINGERS 2 /* its last packets may come again: TIME_WAIT */

/* A change of a connection. Addresses as on the wire, IPv4 as ::ffff:a.b.c.d; ports as numbers. */
struct change {
	__u8 local[16];
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
	__u32 kind;
};

/* Connections to what is told; port 0: any. */
struct told_of {
	__u8 address[16];
	__u32 port;
};

#endif
