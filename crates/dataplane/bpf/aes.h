/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* AES-128 by tables of words, as crates/wire/src/aes.rs makes them and says. */
#ifndef WEIR_AES_H
#define WEIR_AES_H

#include "abi.h"
#include <weir/aes.h>

/* Look-ups are written in the instructions themselves. As C they come out a quarter longer: the compiler
 * begins many at once, for which there are too few registers, and keeps an address for each table instead
 * of adding its place to the load. What a byte of a column contributes to another one: */
#define AES_WORD(tables, column, shift, place, to)                                                 \
	do {                                                                                       \
		__u64 at;                                                                          \
		asm volatile("%0 = %2\n\t%0 " shift "\n\t%0 &= 0x3fc\n\t%0 += %3\n\t"              \
			     "%0 = *(u32 *)(%0 + " #place " * 1024)\n\t%1 ^= %0"                   \
			     : "=&r"(at), "+&r"(to)                                                \
			     : "r"(column), "r"(tables));                                          \
	} while (0)
/* The same of the last byte of a column that is needed no more. */
#define AES_LAST_WORD(tables, column, to)                                                          \
	asm volatile("%0 >>= 22\n\t%0 &= 0x3fc\n\t%0 += %2\n\t%0 = *(u32 *)(%0 + 3 * 1024)\n\t"    \
		     "%1 ^= %0"                                                                    \
		     : "+&r"(column), "+&r"(to)                                                    \
		     : "r"(tables))
/* All of a column's bytes, one after the other: nothing of it is kept beyond, so that the columns that
 * are left and those that are made have room in the registers. */
#define AES_COLUMN(tables, column, first, second, third, fourth)                                   \
	do {                                                                                       \
		AES_WORD(tables, column, "<<= 2", 0, first);                                       \
		AES_WORD(tables, column, ">>= 6", 1, second);                                      \
		AES_WORD(tables, column, ">>= 14", 2, third);                                      \
		AES_LAST_WORD(tables, column, fourth);                                             \
	} while (0)
/* A byte as the last round leaves it, in its place. */
#define AES_BYTE(last, column, shift, to)                                                          \
	do {                                                                                       \
		__u64 at;                                                                          \
		asm volatile("%0 = %2\n\t%0 >>= " #shift "\n\t%0 &= 0xff\n\t%0 += %3\n\t"          \
			     "%0 = *(u8 *)(%0 + 0)\n\t%0 <<= " #shift "\n\t%1 ^= %0"               \
			     : "=&r"(at), "+&r"(to)                                                \
			     : "r"(column), "r"(last));                                            \
	} while (0)
#define AES_LAST(last, a, b, c, d, to)                                                             \
	do {                                                                                       \
		AES_BYTE(last, a, 0, to);                                                          \
		AES_BYTE(last, b, 8, to);                                                          \
		AES_BYTE(last, c, 16, to);                                                         \
		AES_BYTE(last, d, 24, to);                                                         \
	} while (0)

/* All rounds but the last. Rows are shifted the one way to encrypt, and the other to decrypt: the second
 * byte of a column goes to the one that is X further, the fourth to that Y further. */
#define AES_ROUNDS(keys, tables, s, X, Y)                                                          \
	do {                                                                                       \
		_Pragma("unroll") for (int i = 4; i < 40; i += 4)                                  \
		{                                                                                  \
			__u64 t[4] = { keys[i], keys[i + 1], keys[i + 2], keys[i + 3] };           \
			AES_COLUMN(tables, s[0], t[0], t[X], t[2], t[Y]);                          \
			AES_COLUMN(tables, s[1], t[1], t[(X + 1) & 3], t[3], t[(Y + 1) & 3]);      \
			AES_COLUMN(tables, s[2], t[2], t[(X + 2) & 3], t[0], t[(Y + 2) & 3]);      \
			AES_COLUMN(tables, s[3], t[3], t[(X + 3) & 3], t[1], t[(Y + 3) & 3]);      \
			s[0] = t[0];                                                               \
			s[1] = t[1];                                                               \
			s[2] = t[2];                                                               \
			s[3] = t[3];                                                               \
		}                                                                                  \
	} while (0)
#define AES_BEGIN(block, keys)                                                                     \
	{                                                                                          \
		(__u32)block[0] ^ keys[0], block[0] >> 32 ^ keys[1], (__u32)block[1] ^ keys[2],    \
			block[1] >> 32 ^ keys[3]                                                   \
	}

/* The functions are global ones, so that the verifier goes through each once; what they are given has a
 * type whose size it knows. */

/* Encrypts the first ten bytes of the block, and leaves six that mean nothing: half an id is not longer. */
__noinline int aes_encrypt_half(const struct quic_config *config, struct quic_block *in_place)
{
	if (!config || !in_place)
		return 0;
	__u64 *block = in_place->words;
	const __u32 *keys = config->keys;
	__u64 s[4] = AES_BEGIN(block, keys);

	AES_ROUNDS(keys, aes_rounds, s, 3, 1);
	__u64 t[3] = { keys[40], keys[41], keys[42] };

	AES_LAST(aes_last, s[0], s[1], s[2], s[3], t[0]);
	AES_LAST(aes_last, s[1], s[2], s[3], s[0], t[1]);
	AES_BYTE(aes_last, s[2], 0, t[2]);
	AES_BYTE(aes_last, s[3], 8, t[2]);
	block[0] = t[0] | t[1] << 32;
	block[1] = t[2];
	return 0;
}

/* Keys of the equivalent inverse cipher. */
__noinline int aes_decrypt(const struct quic_config *config, struct quic_block *in_place)
{
	if (!config || !in_place)
		return 0;
	__u64 *block = in_place->words;
	const __u32 *keys = config->keys;
	__u64 s[4] = AES_BEGIN(block, keys);

	AES_ROUNDS(keys, aes_inverse_rounds, s, 1, 3);
	__u64 t[4] = { keys[40], keys[41], keys[42], keys[43] };

	AES_LAST(aes_inverse_last, s[0], s[3], s[2], s[1], t[0]);
	AES_LAST(aes_inverse_last, s[1], s[0], s[3], s[2], t[1]);
	AES_LAST(aes_inverse_last, s[2], s[1], s[0], s[3], t[2]);
	AES_LAST(aes_inverse_last, s[3], s[2], s[1], s[0], t[3]);
	block[0] = t[0] | t[1] << 32;
	block[1] = t[2] | t[3] << 32;
	return 0;
}

#endif
