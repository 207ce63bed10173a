// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* A block of AES by the tables of aes.h, and by the kernel's own functions (Linux 6.10), for
 * examples/aes.rs. No program that balances has these in it: it loads on Linux 6.1. */
#include "abi.h"
#include "aes.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* As the kernel has them (kernel/bpf/crypto.c); it finds the former by its name. */
struct bpf_crypto_ctx {
	int unused;
};

struct bpf_crypto_params {
	char type[14];
	__u8 reserved[2];
	char algo[128];
	__u8 key[256];
	__u32 key_len;
	__u32 authsize;
};

struct bpf_crypto_ctx *bpf_crypto_ctx_create(const struct bpf_crypto_params *params, __u32 params__sz,
					     int *err) __ksym;
void bpf_crypto_ctx_release(struct bpf_crypto_ctx *ctx) __ksym;
int bpf_crypto_encrypt(struct bpf_crypto_ctx *ctx, const struct bpf_dynptr *src,
		       const struct bpf_dynptr *dst, const struct bpf_dynptr *siv) __ksym;

struct holder {
	struct bpf_crypto_ctx __kptr *context;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct holder);
} holders SEC(".maps");

/* Blocks of a run, each made of the one before. */
#define BLOCKS 16

struct bpf_crypto_params wanted = {};
int failed = 0;
struct quic_config config = {};
struct quic_block by_tables = {};
__u64 by_kernel[2] = {};
__u64 no_blocks = 0;

/* Makes the cipher: only a program of this kind may, as it sleeps. */
SEC("syscall")
int make(void *ctx)
{
	__u32 key = 0;
	struct holder *holder = bpf_map_lookup_elem(&holders, &key);
	struct bpf_crypto_ctx *made = bpf_crypto_ctx_create(&wanted, sizeof(wanted), &failed);

	if (!made)
		return 1;
	if (!holder) {
		bpf_crypto_ctx_release(made);
		return 2;
	}
	made = bpf_kptr_xchg(&holder->context, made);
	if (made)
		bpf_crypto_ctx_release(made);
	return 0;
}

SEC("xdp")
int tables(struct xdp_md *ctx)
{
	for (int i = 0; i < BLOCKS; i++) {
		aes_encrypt_half(&config, &by_tables);
		by_tables.words[1] &= 0xffff;
	}
	return XDP_PASS;
}

SEC("xdp")
int kernel(struct xdp_md *ctx)
{
	__u32 key = 0;
	struct holder *holder = bpf_map_lookup_elem(&holders, &key);

	if (!holder)
		return XDP_ABORTED;
	struct bpf_crypto_ctx *context = holder->context;

	if (!context)
		return XDP_ABORTED;
	struct bpf_dynptr block;

	bpf_dynptr_from_mem(by_kernel, sizeof(by_kernel), 0, &block);
	for (int i = 0; i < BLOCKS; i++) {
		if (bpf_crypto_encrypt(context, &block, &block, NULL))
			return XDP_ABORTED;
		/* The ten bytes that aes_encrypt_half makes. */
		by_kernel[1] &= 0xffff;
	}
	return XDP_PASS;
}

/* What a run costs without any. */
SEC("xdp")
int nothing(struct xdp_md *ctx)
{
	for (int i = 0; i < BLOCKS; i++)
		no_blocks += i;
	return XDP_PASS;
}
