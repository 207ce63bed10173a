/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* AES-128 by tables of words, as crates/wire/src/aes.rs makes them and says. */
#ifndef WEIR_AES_H
#define WEIR_AES_H

#include "abi.h"
#include <weir/aes.h>

/* The word for a byte of a column, in the table of its place. */
#define AES_WORD(tables, column, place)                                                            \
	(*(const __u32 *)((const void *)(tables) + (place) * 1024 +                                \
			  ((place) ? (column) >> ((place) * 8 - 2) & 0x3fc : ((column) & 0xff) << 2)))
#define AES_COLUMN(tables, a, b, c, d, key)                                                        \
	(AES_WORD(tables, a, 0) ^ AES_WORD(tables, b, 1) ^ AES_WORD(tables, c, 2) ^                \
	 AES_WORD(tables, d, 3) ^ (key))
#define AES_BYTE(last, column, place) ((__u32)last[(column) >> (place) * 8 & 0xff] << (place) * 8)
#define AES_LAST(last, a, b, c, d, key)                                                            \
	((AES_BYTE(last, a, 0) | AES_BYTE(last, b, 1) | AES_BYTE(last, c, 2) |                     \
	  AES_BYTE(last, d, 3)) ^ (key))

/* Rows are shifted the one way to encrypt, and the other to decrypt. */
#define AES_RUN(block, keys, tables, last, X, Y)                                                   \
	do {                                                                                       \
		__u32 s[4] = { (__u32)block[0] ^ keys[0], block[0] >> 32 ^ keys[1],                \
			       (__u32)block[1] ^ keys[2], block[1] >> 32 ^ keys[3] };              \
		_Pragma("unroll") for (int i = 4; i < 40; i += 4)                                  \
		{                                                                                  \
			__u32 a = AES_COLUMN(tables, s[0], s[X], s[2], s[Y], keys[i]);             \
			__u32 b = AES_COLUMN(tables, s[1], s[(X + 1) & 3], s[3], s[(Y + 1) & 3],   \
					     keys[i + 1]);                                         \
			__u32 c = AES_COLUMN(tables, s[2], s[(X + 2) & 3], s[0], s[(Y + 2) & 3],   \
					     keys[i + 2]);                                         \
			__u32 d = AES_COLUMN(tables, s[3], s[(X + 3) & 3], s[1], s[(Y + 3) & 3],   \
					     keys[i + 3]);                                         \
			s[0] = a;                                                                  \
			s[1] = b;                                                                  \
			s[2] = c;                                                                  \
			s[3] = d;                                                                  \
		}                                                                                  \
		block[0] = AES_LAST(last, s[0], s[X], s[2], s[Y], keys[40]) |                      \
			   (__u64)AES_LAST(last, s[1], s[(X + 1) & 3], s[3], s[(Y + 1) & 3],       \
					   keys[41]) << 32;                                        \
		block[1] = AES_LAST(last, s[2], s[(X + 2) & 3], s[0], s[(Y + 2) & 3], keys[42]) |  \
			   (__u64)AES_LAST(last, s[3], s[(X + 3) & 3], s[1], s[(Y + 3) & 3],       \
					   keys[43]) << 32;                                        \
	} while (0)

/* The functions are global ones, so that the verifier goes through each once; what they are given has a
 * type whose size it knows. */
__noinline int aes_encrypt(const struct quic_config *config, struct quic_block *in_place)
{
	if (!config || !in_place)
		return 0;
	__u64 *block = in_place->words;

	AES_RUN(block, config->keys, aes_rounds, aes_last, 1, 3);
	return 0;
}

/* Keys of the equivalent inverse cipher. */
__noinline int aes_decrypt(const struct quic_config *config, struct quic_block *in_place)
{
	if (!config || !in_place)
		return 0;
	__u64 *block = in_place->words;

	AES_RUN(block, config->keys, aes_inverse_rounds, aes_inverse_last, 3, 1);
	return 0;
}

#endif
