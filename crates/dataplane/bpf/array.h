/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Arrays that the loader sizes. */
#ifndef WEIR_ARRAY_H
#define WEIR_ARRAY_H

/* Arrays that packets read are global variables, each alone in a section that the loader resizes
 * before loading: reaching an element takes an addition, where a lookup in an array map passes its
 * key through memory, and a lookup in an inner map is a function call (ARCHITECTURE.md has the
 * figures). `AT(array, i, count)` is an element; the compiler must not think that there is only one.
 *
 * The bound is checked in assembly, on the very register that is used next: the compiler may check
 * one copy of an index and use another, and verifiers before Linux 6.3 do not see that they are
 * equal. An index beyond the bound, which no control plane writes, reads element 0. */
#define RESIZED(type, name) type name[1] SEC(".data." #name)
#define AT(array, i, count)                                                                        \
	({                                                                                         \
		typeof(&array[0]) base = array;                                                    \
		__u64 index = (i);                                                                 \
		__u64 bound = (count);                                                             \
		asm volatile("" : "+r"(base));                                                     \
		asm volatile("if %0 < %1 goto +1\n\t%0 = 0" : "+r"(index) : "r"(bound));           \
		base + index;                                                                      \
	})

#endif
